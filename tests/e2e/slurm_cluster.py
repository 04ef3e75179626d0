"""A real Slurm of three nodes on this machine: its own munge key, sockets, ports and state.

Debian's packages `slurm-wlm` and `munge`; nothing of a Slurm that is installed and configured here is used.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
from forked import free_port
from stack import command_of, wait_until

NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol")


def why_not() -> str:
    """Why Slurm cannot be started here; empty if it can."""
    missing = [name for name in NEEDED if not shutil.which(name, path=_path())]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "slurmd needs root"


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class SlurmCluster:
    def __init__(self, root: Path, epilog: str = "#!/bin/sh\n", nodes: int = 3) -> None:
        self.epilog = epilog
        self.root, self.nodes = root, [f"n{at}" for at in range(nodes)]
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("LOOM_", "SLURM", "SBATCH"))}
        self.env |= {"SLURM_CONF": str(root / "slurm.conf"), "PATH": _path()}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for name in ("state", "run", "log", *(f"spool-{node}" for node in self.nodes)):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        key = self.root / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        socket = self.root / "run/munge.socket"
        munged = ["munged", "-F", f"--key-file={key}", f"--socket={socket}"]
        munged += [f"--pid-file={self.root}/run/munged.pid", f"--seed-file={self.root}/run/seed", "--force"]
        self._begin("munged", [*munged, f"--log-file={self.root}/log/munged.log"])
        wait_until(socket.exists, "munged listens")
        self._configure(socket)
        self._begin("slurmctld", ["slurmctld", "-D"])
        for node in self.nodes:
            self.begin(node)
        wait_until(lambda: self._all_idle(), f"all nodes are idle; logs in {self.root}/log")

    def _configure(self, socket: Path) -> None:
        host = os.uname().nodename
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={free_port()}",
            "SlurmUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={socket}",
            "CryptoType=crypto/munge",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "SlurmdParameters=config_overrides",
            "ReturnToService=2",
            "JobRequeue=1",
            "KillWait=5",
            "SlurmdTimeout=10",
            f"Epilog={self.root}/epilog",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "SlurmctldParameters=preempt_send_user_signal",
            f"StateSaveLocation={self.root}/state",
            f"SlurmctldPidFile={self.root}/run/slurmctld.pid",
            f"SlurmctldLogFile={self.root}/log/slurmctld.log",
            f"SlurmdSpoolDir={self.root}/spool-%n",
            f"SlurmdPidFile={self.root}/run/slurmd-%n.pid",
            f"SlurmdLogFile={self.root}/log/slurmd-%n.log",
            "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,defer_batch",
            "MpiDefault=none",
        ]
        for node in self.nodes:
            lines.append(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4")
        (self.root / "epilog").write_text(self.epilog)
        (self.root / "epilog").chmod(0o755)
        shape = "Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=NO"
        lines.append(f"PartitionName=main Default=YES PriorityTier=1 GraceTime=120 {shape}")
        lines.append(f"PartitionName=urgent PriorityTier=10 PreemptMode=OFF {shape}")
        (self.root / "slurm.conf").write_text("\n".join(lines) + "\n")

    def begin(self, node: str) -> None:
        """Start the slurmd of a node."""
        self._begin(f"slurmd-{node}", ["slurmd", "-D", "-N", node])

    def _begin(self, name: str, command: list[str]) -> None:
        with (self.root / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env=self.env, stdout=log, stderr=log, start_new_session=True
            )

    def _all_idle(self) -> bool:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise AssertionError(f"{name} ended: {(self.root / f'{name}.out').read_text()[-2000:]}")
        said = self.run("sinfo", "-h", "-N", "-o", "%N %t", check=False).split("\n")
        # A node is listed once per partition.
        return {line for line in said if line} == {f"{node} idle" for node in self.nodes}

    def lose(self, node: str, worker: int) -> None:
        """As when the host loses power: its slurmd and all that it started end at once, unannounced.
        `worker`: the process of the worker there; its spawner ends with it."""
        ours = [one for one in psutil.process_iter() if self._is_on(one, node)]
        agents = [one for one in ours if "allocation" in command_of(one)]
        steps = [step for one in agents if (step := one.parent()) is not None]
        assert agents and all("slurmstepd" in step.name() for step in steps), f"no agent runs on {node}"
        daemon = self._processes[f"slurmd-{node}"]
        below = [child for one in (*steps, *ours) for child in one.children(recursive=True)]
        spawner = psutil.Process(worker).parent()
        assert spawner is not None and spawner.pid > 1, "nobody has orphaned it"
        for one in (*steps, *ours, *below, spawner, psutil.Process(worker)):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        daemon.kill()
        daemon.wait()

    def _is_on(self, process: psutil.Process, node: str) -> bool:
        try:
            env, command = process.environ(), process.cmdline()
        except psutil.Error:
            return False
        mine = env.get("SLURM_CONF") == self.env["SLURM_CONF"] and env.get("SLURMD_NODENAME") == node
        home = env.get("LOOM_HOME", "")
        # The batch script and all that runs beside it have the node's name, too, and no home of an agent.
        return (mine and "agent" in command) or (
            home.startswith(str(self.root)) and home.endswith(f"-{node}")
        )

    def find_again(self) -> None:
        """Lost nodes come back, empty."""
        for node in self.nodes:
            if self._processes[f"slurmd-{node}"].poll() is not None:
                self.begin(node)
        wait_until(lambda: self._all_idle(), f"all nodes are idle again; logs in {self.root}/log")

    def run(self, *command: str, given: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            command,
            env=self.env,
            input=given,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            cwd=self.root,  # where Slurm writes the output of jobs that name no file
        )
        if check and done.returncode:
            raise AssertionError(f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def state(self, job: str) -> str:
        said = self.run("scontrol", "show", "job", job, "-o", check=False)
        return said.partition("JobState=")[2].split(" ")[0]

    def wait_state(self, job: str, *states: str) -> str:
        return str(wait_until(lambda: (now := self.state(job)) in states and now, f"job {job} is {states}"))

    def close(self) -> None:
        """End every job and daemon, and what they started."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("scancel", "--full", "-u", "root", check=False)
            give_up = time.monotonic() + 60
            while self.run("squeue", "-h", check=False).strip() and time.monotonic() < give_up:
                time.sleep(0.2)
        for process in reversed(self._processes.values()):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
