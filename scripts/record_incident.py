"""Records a real incident as a replay test: runs a job, hurts a worker, and writes the event stream down.

    python scripts/record_incident.py tests/replay/recordings/NAME.jsonl [--fault kill] [--steps 40]
    python scripts/record_incident.py tests/replay/recordings/NAME.jsonl --inject "mismatch --rank 1"

Paths and the host's name are replaced, so that a recording says nothing about the machine it was made on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from torchloom.bus.nats import NatsBus
from torchloom.cli.service.plan import bus_address
from torchloom.home import Home
from torchloom.wire import codec

REPOSITORY = Path(__file__).resolve().parent.parent
OUTSIDE = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
ITSELF = ("pause", "desync")
LOOM = str(Path(sys.executable).parent / "loom")


def loom(*args: str) -> str:
    return subprocess.run([LOOM, *args], check=True, stdout=subprocess.PIPE, text=True).stdout


def until(condition: Any, timeout_s: float = 90) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("the job did not get there in time")
        time.sleep(0.05)


def injected(inject: str) -> None:
    """A job of three workers and `loom inject` with these words, until what was told of it is over."""
    script = REPOSITORY / "bench" / "workloads" / "watched.py"
    job = loom("submit", "--name", "recorded", "--nproc-per-node", "3", str(script)).split()[-1]
    until(lambda: min((w["steps"] or 0 for w in status(job)["workers"]), default=0) > 60)
    loom("inject", job, *inject.split())
    until(lambda: any(not i["open"] for i in json.loads(loom("incidents", job, "--json"))))
    loom("stop", job)


def status(job: str) -> Any:
    return json.loads(loom("status", job, "--json"))


def incident(notes: Path, fault: str, steps: int) -> None:
    """A DDP job on two workers; rank 1 is hurt or goes wrong by itself, until that is over; stop."""
    script = REPOSITORY / "tests" / "e2e" / "scripts" / ("train.py" if fault == "kill" else "faulty.py")
    args = [str(notes)] if fault == "kill" else [str(notes), fault if fault in ITSELF else "none"]
    if fault == "pause":
        args += ["--seconds", "5"]
    job = loom("submit", "--name", "recorded", "--nproc-per-node", "2", str(script), *args).split()[-1]
    if fault in OUTSIDE:
        until(lambda: notes.exists() and len(notes.read_text().splitlines()) > 2 * steps)
        status = json.loads(loom("status", job, "--json"))
        os.kill(status["workers"][1]["pid"], OUTSIDE[fault])
    until(lambda: any(not i["open"] for i in json.loads(loom("incidents", job, "--json"))))
    loom("stop", job)


async def write(home: Home, path: Path) -> int:
    bus = await NatsBus.connect(bus_address(home, "weaver", "recorder"), name="recorder", wait_s=5)
    count = 0
    try:
        last = await bus.last_seq()
        with path.open("w") as file:
            async with contextlib.aclosing(bus.read(0)) as records:
                async for record in records:
                    envelope = msgspec.to_builtins(codec.decode_envelope(record.data))
                    line = {"seq": record.seq, "at_ns": record.at_ns, "subject": record.subject}
                    text = json.dumps({**line, "envelope": envelope}, ensure_ascii=False)
                    file.write(anonymous(text, home) + "\n")
                    count += 1
                    if record.seq >= last:
                        break
    finally:
        await bus.close()
    return count


def anonymous(text: str, home: Home) -> str:
    for found, shown in (
        (sys.executable, "/venv/bin/python"),
        (str(home.root.parent), "/tmp/run"),
        (str(REPOSITORY), "/repo"),
        (socket.gethostname(), "host"),
    ):
        text = text.replace(found, shown)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--fault", choices=(*OUTSIDE, *ITSELF), default="kill")
    parser.add_argument("--inject", default="", help="what follows `loom inject JOB`")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="loom-record-") as root:
        home = Home(Path(root) / "home")
        # Names of variables are part of the stream, so the job gets few of them.
        kept = {k: os.environ[k] for k in ("PATH", "HOME", "LANG") if k in os.environ}
        os.environ.clear()
        os.environ.update(kept | {"LOOM_HOME": str(home.root), "LOOM_NODE": "host"})
        path = args.path.absolute()
        os.chdir("/")
        try:
            loom("up", "--port", "0")
            if args.inject:
                injected(args.inject)
            else:
                incident(Path(root) / "notes", args.fault, args.steps)
            count = asyncio.run(write(home, path))
        finally:
            subprocess.run([LOOM, "down", "--stop-jobs"], check=False, stdout=subprocess.DEVNULL)
    print(f"{args.path}: {count} events")


if __name__ == "__main__":
    main()
