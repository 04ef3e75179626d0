"""The host of the rendezvous is lost: what torchrun does on the other host. Needs root (network namespaces).

    python bench/rendezvous.py [--way kill|cut] [--give-up 120] [--json]

Two hosts, `torchrun --nnodes 1:2 --max-restarts 3` with the c10d rendezvous on the first. All of the first
host is killed, or cut off the network, while both train. Printed: whether the second host trained again,
alone, as `--nnodes 1:2` allows; when its torchrun ended; and its last words. What torchloom does when a
control host is lost is measured by tests/integration/test_cluster_chaos.py, under a training that continues.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from torchloom.chaos.hosts import INTERFACE, Hosts, why_not

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value, step = torch.ones(8), 0
with open(sys.argv[1], "a", buffering=1) as notes:
    while True:
        step += 1
        dist.all_reduce(value)
        value /= dist.get_world_size()
        notes.write(f"{os.environ['GROUP_RANK']} {dist.get_world_size()} {step}\\n")
        time.sleep(0.1)
"""
PORT = 29500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=("kill", "cut"), default="kill", help="how the host is lost")
    parser.add_argument("--give-up", type=float, default=120.0, help="seconds to wait for the second host")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if why_not():
        print(f"rendezvous: {why_not()}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory, Hosts(2, name="loomr", network="10.79.0") as hosts:
        found = lose(hosts, Path(directory), options.way, options.give_up)
    print(json.dumps(found) if options.json else "\n".join(f"{key}: {value}" for key, value in found.items()))
    return 0


def lose(hosts: Hosts, directory: Path, way: str, give_up_s: float) -> dict[str, object]:
    script, running = directory / "train.py", []
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1"]
    command += ["--max-restarts=3", "--rdzv-backend=c10d", f"--rdzv-endpoint={hosts.address(0)}:{PORT}"]
    try:
        for host in (0, 1):
            with (directory / f"out-{host}").open("wb") as out:
                running.append(
                    hosts.start(
                        host,
                        [*command, *own(hosts, host), str(script), str(directory / f"notes-{host}")],
                        env=os.environ | {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"},
                        stdout=out,
                        stderr=out,
                        start_new_session=True,
                    )
                )
        notes = directory / "notes-1"
        wait(lambda: "1 2 20" in read(notes) or "0 2 20" in read(notes), 180, "both hosts train together")
        began = time.monotonic()
        before = len(read(notes).splitlines())
        if way == "cut":
            hosts.cut(0)
        else:
            os.killpg(running[0].pid, signal.SIGKILL)
            kill_session(str(directory / "notes-0"))
        trained_s = ended_s = None
        while time.monotonic() < began + give_up_s and ended_s is None:
            if trained_s is None and " 1 " in "\n".join(read(notes).splitlines()[before:]):
                trained_s = time.monotonic() - began
            if running[1].poll() is not None:
                ended_s = time.monotonic() - began
            time.sleep(0.05)
        words = [line for line in read(directory / "out-1").splitlines() if "Error" in line]
        return {
            "way": way,
            "trained_again_s": trained_s,
            "torchrun_ended_s": ended_s,
            "exit": running[1].poll(),
            "waited_s": give_up_s if ended_s is None else None,
            "said": words[-1][-200:] if words else "",
        }
    finally:
        for process in running:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        for host in (0, 1):
            kill_session(str(directory / f"notes-{host}"))


def own(hosts: Hosts, host: int) -> list[str]:
    is_host = "true" if host == 0 else "false"
    return [
        "--rdzv-id=1",
        f"--local-addr={hosts.address(host)}",
        f"--rdzv-conf=is_host={is_host},last_call_timeout=10",
    ]


def kill_session(mark: str) -> None:
    """Workers are in sessions of their own: they are found by their argument."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue


def read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def wait(condition: object, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end:
            raise SystemExit(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
