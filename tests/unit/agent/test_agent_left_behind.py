"""What a worker started in a session of its own ends after the worker, and nobody else does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from torchloom.agent.host import LocalWorker
from torchloom.agent.journal import EndedNote, Journal
from torchloom.agent.processes import left_behind
from torchloom.agent.processes.left_behind import LeftBehind
from torchloom.agent.processes.process import start_ticks
from torchloom.home import Home

OBEYS = "import time; print(flush=True); time.sleep(1000)"
IGNORES = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(1000)"
)
MAPS = """
import mmap, sys, time
file = open(sys.argv[1], "r+b")
mapping = mmap.mmap(file.fileno(), 0)
print(flush=True)
time.sleep(1000)
"""


class Children:
    """Real processes, each in a session of its own; killed at the end of the test."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.ticks = start_ticks(os.getpid())

    def start(self, program: str, *args: str, box: Path | None) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if name != left_behind.MARK}
        if box is not None:
            env[left_behind.MARK] = str(box)
        child = subprocess.Popen(
            [sys.executable, "-c", program, *args], env=env, start_new_session=True, stdout=subprocess.PIPE
        )
        self._stack.enter_context(child)
        self._stack.callback(child.kill)
        assert child.stdout is not None and child.stdout.readline() == b"\n", "it runs"
        return child

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children()
    try:
        yield made
    finally:
        made.close()


def ended(child: subprocess.Popen[bytes]) -> bool:
    return child.poll() is not None


def pids(box: Path, since_ticks: int) -> set[int]:
    found = left_behind.find(box, since_ticks)
    for process in found:
        process.close()
    return {process.pid for process in found}


@pytest.fixture
def box(tmp_path: Path) -> Path:
    path = tmp_path / "job.r0.g1"
    path.write_bytes(bytes(4096))
    return path


def test_only_processes_of_that_box_are_found(children: Children, box: Path) -> None:
    mine = children.start(OBEYS, box=box)
    forked = children.start(MAPS, str(box), "-m", "torchloom.spawner", box=None)
    children.start(OBEYS, box=box.with_name("job.r0.g10"))
    children.start(OBEYS, box=None)
    children.start(OBEYS, "-m", "torchloom.cli", "weaver", box=box)
    children.start(OBEYS, "-m", "torchloom.spawner", box=box)
    children.start(MAPS, str(box), box=None)
    assert pids(box, children.ticks) == {mine.pid, forked.pid}
    assert pids(box, start_ticks(forked.pid) + 1_000_000) == set(), "what is older than the worker is not its"


def test_they_end_by_themselves_by_sigterm_or_by_sigkill(children: Children, box: Path) -> None:
    obeys, ignores, other = (
        children.start(OBEYS, box=box),
        children.start(IGNORES, box=box),
        children.start(OBEYS, box=box.with_name("other")),
    )
    asyncio.run(left_behind._end(box, children.ticks, 0.0, 0.5))
    for child in (obeys, ignores):
        child.wait(240)
    assert obeys.returncode == -15 and ignores.returncode == -9
    assert not ended(other)


def test_the_next_agent_ends_what_an_agent_that_was_killed_did_not(
    children: Children, box: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note is there until nothing is left, and the box may be gone by then."""
    worker = cast(LocalWorker, SimpleNamespace(box=None, damaged_box=box, start_ticks=children.ticks))
    left = children.start(OBEYS, box=box)
    killed = Journal(Home(tmp_path / "home"))
    killed.open()
    note = LeftBehind(killed).note(worker)
    killed.close()
    box.unlink()
    monkeypatch.setattr(left_behind, "BY_ITSELF_WITHIN_S", 0.0)
    journal = Journal(Home(tmp_path / "home"))
    journal.open()
    try:
        found = LeftBehind(journal)
        assert found.from_before() == [note]
        for each in found.from_before():
            asyncio.run(found.end(each))
        assert left.wait(240) < 0
        assert journal.left() == [], "nothing is left to look for"
    finally:
        journal.close()


def test_notes_of_before_the_host_was_started_anew_are_dropped(tmp_path: Path) -> None:
    journal = Journal(Home(tmp_path))
    journal.open()
    try:
        journal.keep_left(EndedNote("/dev/shm/box", "0", 1))
        assert LeftBehind(journal).from_before() == [] and journal.left() == []
    finally:
        journal.close()


def test_who_ends_in_time_gets_no_signal(children: Children, box: Path) -> None:
    brief = children.start("import time; print(flush=True); time.sleep(0.2)", box=box)
    asyncio.run(left_behind._end(box, children.ticks, 240.0, 240.0))
    assert brief.wait(240) == 0


def test_the_first_look_waits_until_the_job_is_restarted(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at all processes of a busy host would take the interpreter from the agent's loop."""
    looks: list[int] = []
    monkeypatch.setattr(left_behind, "_count", lambda *_: looks.append(1) or 0)

    async def main() -> None:
        ending = asyncio.create_task(left_behind._end(box, 0, 5.0, 5.0))
        await asyncio.sleep(left_behind.FIRST_LOOK_AFTER_S / 4)
        assert not looks
        await ending
        await left_behind._end(box, 0, 0.0, 5.0)

    asyncio.run(main())
    assert len(looks) == 2
