"""The wall clock of a real process jumps, of one written in Go too; nobody else's does."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loom_home import wait_for

from torchloom.bus.embedded import choose_port
from torchloom.bus.nats_binary import find_server
from torchloom.chaos import clocks

pytestmark = pytest.mark.skipif(bool(clocks.why_not()), reason=clocks.why_not())
FAR_S = 3600
TELLS = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.time.restype = ctypes.c_long
both = (ctypes.c_long * 2)()
while input():
    libc.gettimeofday(both, None)
    print(time.time(), time.clock_gettime(5), libc.time(None), both[0], time.monotonic(), flush=True)
"""
"""All ways to ask for the wall clock (5 is the coarse one), and another clock."""


@pytest.fixture
def told() -> Iterator[tuple[int, Callable[[], list[float]]]]:
    process = subprocess.Popen(
        [sys.executable, "-c", TELLS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None

    def ask() -> list[float]:
        print("now", file=process.stdin, flush=True)
        return [float(word) for word in process.stdout.readline().split()]

    yield process.pid, ask
    process.kill()
    process.communicate()
    assert not clocks.jump(process.pid, 1), "it has ended"


def test_every_way_to_ask_for_the_time_of_day_jumps_and_no_other_clock_does(
    told: tuple[int, Callable[[], list[float]]],
) -> None:
    pid, ask = told
    for jump in (0, 5 * FAR_S, -20 * FAR_S, 0):
        assert clocks.jump(pid, jump)
        for shown in ask()[:4]:
            assert abs(shown - time.time() - jump) < FAR_S / 2
        assert abs(ask()[4] - time.monotonic()) < FAR_S / 2


def test_the_clock_of_a_program_in_go_jumps(tmp_path: Path) -> None:
    port, monitor = choose_port(), choose_port()
    command = [str(find_server()), "-a", "127.0.0.1", "-p", str(port), "-m", str(monitor)]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)

    def ahead_s() -> float | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/varz", timeout=60) as answer:
                now = datetime.datetime.fromisoformat(json.load(answer)["now"])
        except OSError:
            return None
        return now.timestamp() - time.time()

    try:
        wait_for(lambda: ahead_s() is not None, "the server answers")
        for jump in (5 * FAR_S, -20 * FAR_S, 0):
            assert clocks.jump(server.pid, jump)
            found = ahead_s()
            assert found is not None and abs(found - jump) < FAR_S / 2
    finally:
        server.kill()
        server.wait()
