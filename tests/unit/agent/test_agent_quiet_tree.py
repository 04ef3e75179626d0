"""A worker that only waits for its children: how long none of them has shown life."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchloom.agent.observe import kernel
from torchloom.agent.observe.quiet_tree import LOOK_EVERY_NS, QuietTree

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print("up", flush=True)
child.wait()
"""
SLEEPS = "import signal; print('up', flush=True); signal.pause()"
COMPUTES = "print('up', flush=True)\nwhile True: pass"


@pytest.fixture
def parent_of(tmp_path: Path) -> Iterator[Any]:
    started: list[subprocess.Popen[bytes]] = []

    def start(child: str) -> Any:
        parent = subprocess.Popen([sys.executable, "-c", PARENT, child], stdout=subprocess.PIPE)
        started.append(parent)
        assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
        return SimpleNamespace(pid=parent.pid, log=tmp_path / "log")

    yield start
    for parent in started:
        for pid in (kernel.tree(parent.pid) or SimpleNamespace(pids=())).pids:
            subprocess.run(["kill", "-9", str(pid)], check=False)
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()


def test_children_that_wait_are_quiet_since_the_first_look(parent_of: Any) -> None:
    worker, seen = parent_of(SLEEPS), QuietTree()
    assert seen.look(worker, 0) == (1, 0)
    # Times are arguments: as if minutes had passed in which nobody did anything.
    assert seen.look(worker, 100 * LOOK_EVERY_NS) == (1, 100 * LOOK_EVERY_NS)
    worker.log.write_text("still here")
    assert seen.look(worker, 200 * LOOK_EVERY_NS) == (1, 0), "it printed"


def test_a_child_that_computes_is_a_sign_of_life(parent_of: Any) -> None:
    worker, seen = parent_of(COMPUTES), QuietTree()
    assert seen.look(worker, 0) == (1, 0)
    before = kernel.tree(worker.pid)
    assert before is not None
    while (now := kernel.tree(worker.pid)) is not None and now.cpu_ns - before.cpu_ns < LOOK_EVERY_NS // 10:
        time.sleep(0.01)
    assert seen.look(worker, LOOK_EVERY_NS) == (1, 0)


def test_without_children_nothing_is_said(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        worker: Any = SimpleNamespace(pid=process.pid, log=tmp_path / "log")
        seen = QuietTree()
        assert seen.look(worker, 0) == seen.look(worker, 100 * LOOK_EVERY_NS) == (0, 0)
    finally:
        process.kill()
        process.wait()
