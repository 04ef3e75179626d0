"""A control plane of its own, for the benchmarks of steering. Measures nothing itself."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from support.launchers import BIN
from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError
from torchloom.home import Home

PARTS = ("weaver", "agent", "nats")
AGAIN_S = 0.05
SLOTS = 64
"""More than a host of few cores offers by itself: the largest job that is steered has 32 workers."""


class Cluster:
    """`loom up` in a home of its own."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="loom-bench-"))
        self.home = Home(self.root / "home")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
        self.env |= {"LOOM_HOME": str(self.home.root), "NO_COLOR": "1"}
        self.env["LOOM_SLOTS"] = str(SLOTS)

    def loom(self, *args: str) -> str:
        done = subprocess.run([str(BIN / "loom"), *args], env=self.env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"loom {' '.join(args)} failed: {done.stderr}")
        return done.stdout

    def pid(self, part: str) -> int | None:
        """None while it is being started again."""
        try:
            return int(json.loads((self.home.parts_dir / f"{part}.json").read_bytes())["pid"])
        except (OSError, ValueError, KeyError):
            return None

    def kill(self, part: str) -> None:
        pid = self.pid(part)
        with contextlib.suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)

    def cpu_s(self, part: str) -> float:
        return cpu_s(self.pid(part))


def cpu_s(pid: int | None) -> float:
    """What a process has used so far, 0 if there is none."""
    try:
        used = psutil.Process(pid).cpu_times() if pid is not None else None
    except psutil.Error:
        used = None
    return float(used.user + used.system) if used is not None else 0.0


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        made.loom("up", "--port", "0")
        yield made
    finally:
        subprocess.run([str(BIN / "loom"), "down", "--stop-jobs"], env=made.env, capture_output=True)
        shutil.rmtree(made.root, ignore_errors=True)


def ask(client: Client, job: str, values: Mapping[str, object], key: str, again_s: float = AGAIN_S) -> str:
    """The operation's id. Asked again, under the same key, while nobody takes it."""
    body: Any = {"values": dict(values)}
    while True:
        try:
            return client.change(job, body, idempotency_key=key)["operation"]
        except LoomError:
            time.sleep(again_s)


def outcome(client: Client, job: str, operation: str, again_s: float = AGAIN_S) -> dict[str, Any]:
    """The reported outcome."""
    while True:
        try:
            found: Any = client.operation(job, operation, wait_s=10.0)
            if found["ended"]:
                return dict(found)
        except LoomError:
            time.sleep(again_s)


def connect(made: Cluster) -> Client:
    return Client(Endpoint.find(made.home))
