"""Scripts with the probe inside, in processes of their own or forked from a warm one, and their boxes."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from forker import Forker, Workers

from torchloom.wire.blackbox import (
    IDENTITY,
    LAYOUT_VERSION,
    MAGIC,
    SIZE,
    Header,
    Life,
    View,
)

SCRIPTS = Path(__file__).parent / "probe"


SOURCES = str(Path(__file__).parents[2] / "src")


ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCES, "LOOM_RECORDER": "none"}


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def new_box(path: Path) -> View:
    """A box as the spawner makes it."""
    path.write_bytes(bytes(SIZE))
    with path.open("r+b") as file:
        view = View(memoryview(mmap.mmap(file.fileno(), SIZE)))
    view.set_header(Header.MAGIC, MAGIC)
    view.set_header(Header.LAYOUT, LAYOUT_VERSION)
    view.set_header(Header.SIZE, SIZE)
    view.set_header(Header.RANK, 1)
    view.set_header(Header.LIFE, Life.CREATED)
    view.write_blob(IDENTITY, json.dumps({"job": "j1", "replica": "j1/0"}).encode())
    return view


def blob(view: View, which: Any) -> Any:
    return json.loads(view.read_blob(which) or b"null")


def plain_python(*arguments: str, cwd: Path = SCRIPTS) -> Outcome:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def cold(spec: dict[str, Any], cwd: Path = SCRIPTS, **variables: str) -> Outcome:
    reader, writer = os.pipe()
    os.write(writer, json.dumps(spec).encode())
    os.close(writer)
    done = subprocess.run(
        [sys.executable, "-m", "torchloom.probe.launch"],
        cwd=cwd,
        env={**ENVIRONMENT, **variables, "LOOM_SPEC_FD": str(reader)},
        pass_fds=[reader],
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(reader)
    return Outcome(done.returncode, done.stdout, done.stderr)


class Warm:
    """The process that has torch imported and forks a worker for every order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self._forker = Forker(["-m", "warm"], ENVIRONMENT, SCRIPTS)
        self.close = self._forker.close

    def order(self, spec: dict[str, Any], cwd: Path = SCRIPTS, **variables: str) -> Ordered:
        """Start a worker; `outcome` waits for it. A worker that an earlier test has left is ended first."""
        self._forker.end()
        self._count += 1
        out, err = (self._directory / f"{self._count}.{name}" for name in ("out", "err"))
        order = {"spec": spec, "cwd": str(cwd), "out": str(out), "err": str(err), "env": variables}
        return Ordered(self._forker.start([order]), out, err)

    def outcome(self, ordered: Ordered) -> Outcome:
        (code,) = ordered.workers.codes()
        return Outcome(code, ordered.out.read_text(), ordered.err.read_text())

    def __call__(self, spec: dict[str, Any], cwd: Path = SCRIPTS, **variables: str) -> Outcome:
        return self.outcome(self.order(spec, cwd, **variables))


class Ordered(NamedTuple):
    """A worker that runs, and where it writes."""

    workers: Workers
    out: Path
    err: Path


def wait_for(condition: Callable[[], bool], timeout_s: float = 150) -> None:
    import time

    limit = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.005)
