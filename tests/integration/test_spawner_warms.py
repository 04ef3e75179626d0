"""The moment in which a spawner has warmed up: whoever waited for it is answered then, not a turn later."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.spawner.server import Server
from torchloom.spawner.unix_socket import usable_address
from torchloom.spawner.warm import Warmth

CHANGED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    path = tmp_path / "sockets" / "spawner.sock"
    before = {number: signal.getsignal(number) for number in CHANGED}
    made = Server(path, "key", idle_s=30.0, cold=False)
    yield made, path
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)
    made.abandon()


def test_who_waited_has_the_answer_before_the_loop_waits_for_anything_else(
    server: tuple[Server, Path],
) -> None:
    spawner, path = server
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as agent:
        with usable_address(path) as address:
            agent.connect(address)
        agent.sendall(b'{"id": 7, "do": "state", "when": "warm"}\n')
        while not spawner.waited_for():
            spawner.turn(timeout_s=1.0)
        spawner.warmed(Warmth(cold=False))
        agent.setblocking(False)
        answer = json.loads(agent.recv(1 << 16))
    assert answer["id"] == 7 and answer["result"]["state"] == "warm"
