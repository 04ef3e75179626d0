"""Copies that are sent and taken by the process for copies."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from memory_sides import JOB, KEY, Side

from torchloom.agent.neighbour.channel import call
from torchloom.agent.neighbour.copy_process import CopyProcess
from torchloom.agent.neighbour.door import MemoryDoor
from torchloom.agent.neighbour.plans import KeptPlan
from torchloom.agent.neighbour.sending import REPLACED, CopyResult, SendOrder
from torchloom.agent.neighbour.slot_transfer import copied_slots
from torchloom.checkpoint.memory.header import HEADER
from torchloom.model.neighbours import MemoryPeer

HANG_S = 60.0


@pytest.fixture
def process() -> Iterator[CopyProcess]:
    made = CopyProcess()
    yield made
    made.close()


@pytest.fixture
def far_door(there: Side, process: CopyProcess) -> Iterator[MemoryDoor]:
    """The other host's agent, which lets the process take what is put there."""
    there.home.root.mkdir(parents=True, exist_ok=True)
    opened = MemoryDoor(there.home, "127.0.0.1", elsewhere=process.take)
    opened.open()
    yield opened
    opened.close()


def order(side: Side, port: int, save: str, bytes_per_s: float = 0.0) -> SendOrder:
    plan = KeptPlan(1, MemoryPeer("there", "127.0.0.1", port), KEY)
    return SendOrder(JOB, str(side.folder), plan, 1, save, "", bytes_per_s)


def until(condition: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.005)


def pid_of(process: CopyProcess) -> int:
    assert process._process is not None
    return process._process.pid


def test_a_state_arrives_as_it_was(
    here: Side, there: Side, process: CopyProcess, far_door: MemoryDoor
) -> None:
    body = here.seal(here.own(1, 0), "s.1")
    sent = process.send(order(here, far_door.port, "s.1"))
    assert sent.trouble == "" and sent.ran_s > 0
    (slot,) = copied_slots(there.folder, 1)
    assert slot.path.read_bytes()[HEADER:] == body
    assert os.getpriority(os.PRIO_PROCESS, pid_of(process)) > os.getpriority(os.PRIO_PROCESS, 0)


def test_other_requests_follow_on_a_connection_that_was_handed_over(
    here: Side, there: Side, far_door: MemoryDoor
) -> None:
    there.seal(there.own(0, 0), "s.1")
    with call("127.0.0.1", far_door.port, JOB, bytes.fromhex(KEY)) as channel:
        channel.say(ask="list", rank=0)
        assert [one["save"] for one in channel.hear()["states"]] == ["s.1"]
        channel.say(ask="put", rank=1, generation=0, save="s.1", keep="", size=10)
        assert channel.hear() == {"why": "its generation is over"}
        channel.say(ask="list", rank=0)
        assert [one["save"] for one in channel.hear()["states"]] == ["s.1"]


def test_what_is_not_there_any_more_and_who_does_not_answer(
    here: Side, process: CopyProcess, far_door: MemoryDoor
) -> None:
    assert process.send(order(here, far_door.port, "s.1")).trouble == REPLACED
    here.seal(here.own(1, 0), "s.1")
    assert process.send(order(here, 1, "s.1")).trouble.startswith("there has no copy: ")


def test_a_process_that_is_killed_in_the_middle_costs_one_copy(
    here: Side, there: Side, process: CopyProcess, far_door: MemoryDoor
) -> None:
    here.seal(here.own(1, 0), "s.1")
    found: list[CopyResult] = []
    slow = order(here, far_door.port, "s.1", bytes_per_s=100_000)
    thread = threading.Thread(target=lambda: found.append(process.send(slow)))
    thread.start()
    until(lambda: list(there.folder.glob("copy-1.*")))
    os.kill(pid_of(process), signal.SIGKILL)
    thread.join(HANG_S)
    assert found == [CopyResult("the process for copies has ended")] and there.copies(1) == []
    until(lambda: not process.send(order(here, far_door.port, "s.1")).trouble)
    assert there.copies(1) == ["s.1"]


def test_it_ends_with_an_agent_that_is_killed(here: Side) -> None:
    reads, writes = os.pipe()
    agent = os.fork()
    if not agent:
        made = CopyProcess()
        made.send(order(here, 1, "s.1"))
        os.write(writes, f"{pid_of(made)}\n".encode())
        time.sleep(HANG_S)
        os._exit(0)
    pid = int(os.read(reads, 20))
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    until(lambda: not _lives(pid))
    os.close(reads)
    os.close(writes)


def test_after_the_end_nothing_is_started(here: Side, process: CopyProcess) -> None:
    process.close()
    assert process.send(order(here, 1, "s.1")).trouble == "no process could be started for copies"


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
