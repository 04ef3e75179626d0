"""Who a pid is, whether it lives and how it ended, from the kernel alone."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable

import pytest

from torchloom.agent.processes.process import Process, Status, is_alive, start_ticks


def begin(command: str) -> tuple[subprocess.Popen[bytes], Process]:
    child = subprocess.Popen(["sh", "-c", command], start_new_session=True, stdout=subprocess.PIPE)
    held = Process.open(child.pid, start_ticks(child.pid))
    assert held is not None
    return child, held


def wait_readable(process: Process) -> None:
    assert select.select([process.fd], [], [], 240)[0]


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 0", Status(0, None)), ("exit 250", Status(250, None)), ("kill -9 $$", Status(None, 9))],
)
@pytest.mark.parametrize("reap", [False, True], ids=["zombie", "reaped"])
def test_the_status_of_a_process_that_is_not_our_child_to_wait_for(
    command: str, status: Status, reap: bool
) -> None:
    child, held = begin(command)
    wait_readable(held)
    assert not held.alive  # a zombie is dead
    if reap:
        child.wait()
        if held.status() is None:
            pytest.skip("this kernel keeps no exit status of a reaped process (needs Linux 6.15)")
    assert held.status() == status
    child.wait()
    held.close()


def test_a_pid_alone_names_nobody() -> None:
    ticks = start_ticks(os.getpid())
    assert is_alive(os.getpid(), ticks)
    assert not is_alive(os.getpid(), ticks + 1)
    assert Process.open(os.getpid(), ticks + 1) is None
    for nobody in (0, -1, 2**22 + 1):
        assert Process.open(nobody, ticks) is None
        assert start_ticks(max(0, nobody)) == 0


def test_the_group_is_reached_before_and_after_its_leader_is_gone() -> None:
    child, held = begin("sleep 1000 & echo $!; exit 0")
    assert child.stdout is not None
    left = int(child.stdout.readline())
    orphan = Process.open(left, start_ticks(left))
    assert orphan is not None
    child.wait()
    held.signal_group(signal.SIGKILL)
    try:
        wait_readable(orphan)
    finally:
        signal_one(orphan)
    assert not orphan.alive
    held.signal_group(signal.SIGKILL)  # an empty group is no error
    for process in (held, orphan):
        process.close()
        process.close()
    child.stdout.close()


def signal_one(process: Process, kill: Callable[[int, int], None] = os.kill) -> None:
    if process.alive:
        kill(process.pid, signal.SIGKILL)
