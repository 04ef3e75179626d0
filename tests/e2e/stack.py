"""A whole torchloom of its own for a test: home, port, `loom` commands, and a check that nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from torchloom.client import Client, Endpoint, NotAnswering, Unavailable
from torchloom.client.endpoint import local_url
from torchloom.errors import Conflict, LoomError
from torchloom.home import Home

BIN = Path(sys.executable).parent
SCRIPTS = Path(__file__).resolve().parent / "scripts"


HANG_S = 150.0
"""A limit that is only there against a hang: some machines are slow, and stand still for seconds."""
REFUSED, TIMED_OUT = 5, 6
"""Exit codes of commands."""
TOO_LATE = re.compile(r"in time|tries\)|did not answer within|does not answer")
"""What the ranks say, and the service, when they could not agree because the machine had no time for them."""
BUSY = frozenset(
    {
        "node-lost",
        "no-progress",
        "compute-slow",
        "data-slow",
        "host-contention",
        "communication-slow",
        "link-slow",
        "sender-slow",
        "receiver-slow",
        "data-imbalance",
        "global-slowdown",
    }
)
"""What is truly told of a healthy job on a machine that has no time for it."""


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = HANG_S) -> Any:
    """Poll until the condition gives something true, and return that."""
    end = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        # Looking takes time from what is waited for.
        time.sleep(max(0.02, time.monotonic() - began))


def lines_of(path: Path) -> list[str]:
    """The lines of a file that somebody else is writing, without one that is not whole yet."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


READ: dict[str, Callable[..., Any]] = {
    "status": Client.job,
    "ps": Client.all_jobs,
    "incident": Client.incident,
    "incidents": lambda client, job=None: client.incidents(job=job),
    "checkpoints": Client.checkpoints,
    "nodes": Client.nodes,
    "devices": Client.devices,
    "operations": lambda client, job, *one: (client.operation if one else client.operations)(job, *one),
}
"""Verbs that show no more than one answer of the API; tests/integration/test_cli_verbs.py sees them do it."""


class Stack:
    """`loom up` in a home of its own."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.env = {
            k: v for k, v in os.environ.items() if not k.startswith("LOOM_") or k == "LOOM_RESTORE_CHECK"
        }
        self.env |= {"LOOM_HOME": str(root), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "LOOM_SLOTS": "64"}
        self.env["LOOM_KERNEL_LOG"] = str(root.with_name(f"{root.name}.kernel.log"))

    # -- commands -------------------------------------------------------------------------------------
    def loom(
        self, *args: str, check: int | None = 0, timeout: float = 240
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(BIN / "loom"), *args], env=self.env, capture_output=True, text=True, timeout=timeout
        )
        if check is not None and done.returncode != check:
            raise AssertionError(
                f"loom {' '.join(args)} ended with {done.returncode}, expected {check}\n"
                f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}\n--- logs\n{self.logs()}"
            )
        return done

    def steer(self, *args: str) -> subprocess.CompletedProcess[str]:
        """A command for which all ranks have to agree. Said again where they had no time to: that is told,
        changes nothing, and is shown elsewhere."""

        def once() -> subprocess.CompletedProcess[str] | None:
            done = self.loom(*args, check=None)
            late = done.returncode == REFUSED and TOO_LATE.search(done.stdout + done.stderr)
            return None if late else done

        found: subprocess.CompletedProcess[str] = wait_until(once, f"the ranks agree to {args}")
        if found.returncode:
            raise AssertionError(f"loom {' '.join(args)}: {found}\n--- logs\n{self.logs()}")
        return found

    def json(self, verb: str, *args: str) -> Any:
        """What a command answers. What commands only read is asked for without one: that is done often, and
        to start one takes half a second of a core."""
        if verb not in READ or any(arg.startswith("-") for arg in args):
            return json.loads(self.loom(verb, *args, "--json").stdout)

        def answer() -> tuple[Any] | None:
            try:
                return (self._ask(verb, *args),)
            except (NotAnswering, Unavailable):
                return None

        return wait_until(answer, f"an answer to {verb} {args}")[0]

    def _ask(self, verb: str, *args: str) -> Any:
        with self.client() as client:
            return READ[verb](client, *args)

    def client(self) -> Client:
        return Client(Endpoint(local_url(self.home), self.home.token_file.read_text().strip()))

    def up(self, *flags: str) -> None:
        """Said again where the machine stood still: the next one adopts what has started."""
        while (done := self.loom("up", "--port", "0", *flags, check=None)).returncode == TIMED_OUT:
            pass
        if done.returncode:
            raise AssertionError(f"loom up: {done}\n--- logs\n{self.logs()}")

    def end(self) -> None:
        """End everything; nothing of it may be left."""

        def down() -> bool:
            return self.loom("down", "--stop-jobs", check=None).returncode == 0

        wait_until(down, "everything is told to end")
        self.wait_nothing_left()

    def wait_nothing_left(self) -> None:
        """Who was told to end may need a moment to be gone."""
        try:
            wait_until(lambda: not self.leftovers(), "nothing is left")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.leftovers()}\n{self.logs()}") from error

    def stay_up(self) -> None:
        """Up, unless all of it is."""
        parts = ("supervisor", "nats", "weaver", "agent")
        if not all(_lives(self.try_part_pid(part)) for part in parts):
            self.up()

    def end_jobs(self) -> None:
        """What runs is killed, so that the next test has the machine for itself."""
        told: set[str] = set()

        def over() -> bool:
            living = [job["id"] for job in self.json("ps") if not job["ended"]]
            for job in living:
                # The test may have left a service that is just coming back: it is told again.
                with self.client() as client, contextlib.suppress(Conflict, NotAnswering, Unavailable):
                    if job not in told:
                        client.stop(job, {"kill": True})
                        told.add(job)
            return not living

        wait_until(over, "all jobs have ended")

    def submit(self, script: str, *args: str, workers: int = 2, flags: tuple[str, ...] = ()) -> str:
        path = script if os.path.isabs(script) else str(SCRIPTS / script)
        out = self.loom("submit", "--nproc-per-node", str(workers), *flags, path, *args)
        return out.stdout.split()[-1]

    def status(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.json("status", job)
        return found

    def faults(self, job: str) -> list[dict[str, Any]]:
        """Incidents but those that a busy machine causes: who takes its time is told of as well."""

        def busy(one: dict[str, Any]) -> bool:
            return one["kind"] in BUSY or ("hang" in one["kind"] and one["decision"].startswith("reported"))

        return [one for one in self.json("incidents", job) if not busy(one)]

    def try_status(self, job: str) -> dict[str, Any]:
        """Like status, but empty while the control service is away."""
        try:
            found: dict[str, Any] = self._ask("status", job)
        except LoomError:
            return {}
        return found

    def wait_state(self, job: str, *states: str, timeout_s: float = HANG_S) -> dict[str, Any]:
        try:
            found: dict[str, Any] = wait_until(
                lambda: (s := self.try_status(job)) and s["state"] in states and s,
                f"{job} {states}",
                timeout_s,
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.try_status(job)}\n{self.logs()}") from error
        return found

    def worker_pid(self, job: str, rank: int) -> int:
        """Of a worker that runs. A pid is read before the service knows it as 0, which a kill takes for the
        test's own process group, and while a job recovers it is that of a dead worker."""

        def look() -> int:
            workers = self.try_status(job).get("workers", ())
            runs = [w["pid"] for w in workers if w["rank"] == rank and w["state"] == "running"]
            return int(runs[0]) if runs and psutil.pid_exists(runs[0]) else 0

        found: int = wait_until(look, f"rank {rank} of {job} runs")
        return found

    # -- parts ----------------------------------------------------------------------------------------
    def part_pid(self, name: str) -> int:
        """Pid of nats, weaver, agent or supervisor."""
        return int(json.loads((self.home.parts_dir / f"{name}.json").read_bytes())["pid"])

    def try_part_pid(self, name: str) -> int:
        try:
            return self.part_pid(name)
        except (OSError, ValueError, KeyError):
            return 0

    def kill_part(self, name: str) -> int:
        """SIGKILL a part and wait until the kernel has ended it; its pid."""
        pid: int = (
            wait_until(self.spawner_pids, "a spawner lives")[0] if name == "spawner" else self.part_pid(name)
        )
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _lives(pid), f"{name} has ended")
        return pid

    def wait_part_back(self, name: str, old_pid: int) -> None:
        if name == "spawner":
            wait_until(lambda: any(p != old_pid for p in self.spawner_pids()), "a new spawner")
        else:
            wait_until(lambda: self.try_part_pid(name) not in (0, old_pid), f"a new {name}")

    def spawner_pids(self) -> list[int]:
        return [p.pid for p in self.processes() if _is_spawner(p)]

    def processes(self) -> list[psutil.Process]:
        """Every living process that was started for this home."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                    continue
                command = " ".join(process.cmdline())
                mine = process.environ().get("LOOM_HOME") == str(self.home.root)
            except psutil.Error:
                continue
            if mine or str(self.home.root) in command or str(self.home.sockets) in command:
                found.append(process)
        return found

    def lighthouses(self) -> list[int]:
        """Processes of lighthouses and relays."""
        return [one.pid for one in self.processes() if "torchloom.agent.lighthouse" in command_of(one)]

    def logs(self) -> str:
        parts = []
        for path in sorted(self.home.logs_dir.glob("*")) if self.home.logs_dir.is_dir() else []:
            parts.append(f"=== {path.name}\n" + path.read_text(errors="replace")[-3000:])
        return "\n".join(parts)

    def leftovers(self) -> list[str]:
        """What must not be there when everything has ended."""
        found = [f"process {p.pid}: {command_of(p)[:200]}" for p in self.processes()]
        found += [f"file {path}" for path in (self.home.sockets, self.home.boxes) if path.exists()]
        found += [f"box {path}" for path in self.home.boxes_fallback.glob("*")]
        found += [f"part {path}" for path in self.home.parts_dir.glob("*.json")]
        return found


def command_of(process: psutil.Process) -> str:
    """Its command line; "?" if it has ended since it was found, reaped or not."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "?"


def _lives(pid: int) -> bool:
    """Whether a process runs. One that was killed keeps its pid until its parent reaps it."""
    try:
        return pid > 0 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_spawner(process: psutil.Process) -> bool:
    """A spawner itself: it alone holds the lock beside its socket; what it forked has its command line."""
    try:
        if "torchloom.spawner" not in command_of(process):
            return False
        files = [Path(file.path).name for file in process.open_files()]
    except psutil.Error:
        return False
    return any(name.startswith("spawner-") and name.endswith(".lock") for name in files)
