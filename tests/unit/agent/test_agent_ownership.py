"""What a killed agent left in shared memory is removed by the next one, and nothing that anybody uses."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchloom.agent.ownership import Claim, sweep
from torchloom.home import Home

AGENT = """
import asyncio, sys
from pathlib import Path
from torchloom.agent.ownership import Claim
from torchloom.home import Home
asyncio.run(Claim(Home(Path(sys.argv[1])), once=sys.argv[2] == "once").take())
print("here", flush=True)
sys.stdin.read()
"""
WORKER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    kept = mmap.mmap(file.fileno(), 4096)
print("here", flush=True)
sys.stdin.read()
"""
SPAWNER = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("here", flush=True)
sys.stdin.read()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def begin(code: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        return process

    yield begin
    for process in running:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "home")
    made.prepare()
    if made.boxes == made.boxes_fallback:
        pytest.skip("there is no /dev/shm here")
    yield made
    for path in (made.boxes, made.sockets):
        shutil.rmtree(path, ignore_errors=True)


def swept(home: Home) -> bool:
    """Whether the sweep of another agent removed all that this home had in shared places."""
    found = home.boxes in sweep()
    assert found == (not home.boxes.exists()) == (not home.sockets.exists())
    return found


def leave_states(home: Home) -> Path:
    box = home.boxes / "job.r0.g1.i1.abc.box"
    box.write_bytes(bytes(4096))
    (home.boxes / "memory-job").mkdir()
    (home.boxes / "memory-job" / "own-0.0").write_bytes(b"state")
    return box


def test_what_a_killed_agent_left_is_removed_once_nobody_uses_it(home: Home, start: Start) -> None:
    agent = start(AGENT, str(home.root), "once")
    box = leave_states(home)
    worker = start(WORKER, str(box))
    spawner = start(SPAWNER, str(home.sockets / "spawner-1.sock.lock"))
    assert not swept(home), "its agent lives"
    kill(agent)
    assert not swept(home), "a worker lives: somebody may want to look at it"
    kill(worker)
    assert not swept(home), "a spawner lives"
    kill(spawner)
    assert swept(home)


def test_a_home_that_exists_may_get_an_agent_again_and_keeps_its_states(home: Home, start: Start) -> None:
    agent = start(AGENT, str(home.root), "again")
    leave_states(home)
    kill(agent)
    assert not swept(home)
    shutil.rmtree(home.root)
    assert swept(home)


def test_nothing_without_a_readable_record_of_this_pid_namespace_is_touched(home: Home, start: Start) -> None:
    kill(start(AGENT, str(home.root), "once"))
    owner = home.boxes / "owner"
    said = owner.read_text()
    for text in ("", "[]", '{"once": true}', said.replace('"pid_namespace": ', '"pid_namespace": 1')):
        owner.write_text(text)
        assert not swept(home), text
    owner.unlink()
    assert not swept(home), "of a version that wrote none"
    owner.write_text(said)
    assert swept(home)


def test_sockets_elsewhere_are_not_removed_because_a_record_names_them(
    home: Home, start: Start, tmp_path: Path
) -> None:
    kill(start(AGENT, str(home.root), "once"))
    other = tmp_path / "precious"
    other.mkdir()
    owner = home.boxes / "owner"
    owner.write_text(owner.read_text().replace(str(home.sockets), str(other)))
    assert home.boxes in sweep() and other.exists()


def test_an_agent_that_ends_leaves_no_mark_and_its_successor_takes_over_after_a_kill(
    home: Home, start: Start
) -> None:
    kill(start(AGENT, str(home.root), "once"))

    async def story() -> None:
        claim = Claim(home, once=True)
        await claim.take()
        assert not swept(home)
        claim.release(keep=False)
        assert not list(home.boxes.iterdir())

    asyncio.run(story())
