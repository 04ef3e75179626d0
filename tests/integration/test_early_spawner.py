"""The spawner that `loom run` starts before there is an agent: the job's own, never left behind."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loom_home import wait_for

from torchloom.agent.processes.recipe import Recipe, recipe
from torchloom.agent.processes.spawners import Spawners
from torchloom.agent.processes.worker_environment import without_secrets
from torchloom.cli.service.early_spawner import EarlySpawner
from torchloom.client.schema import JobRequest
from torchloom.home import Home
from torchloom.private import make_private
from torchloom.spawner.launch import socket_path
from torchloom.spawner.unix_socket import usable_address


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path / "home")
    found.prepare()
    yield found
    if found.sockets.exists():
        found.sockets.rmdir()  # fails if anything is left in it


def request_of(**more: str) -> JobRequest:
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "LOOM_TOKEN": "secret", **more}
    return {"interpreter": sys.executable, "env": env, "spawn": "warm", "preload": []}


def test_the_agent_finds_it_under_the_key_of_the_job_and_it_can_be_ended_at_once(home: Home) -> None:
    body = request_of(MALLOC_ARENA_MAX="2")
    wanted = recipe(body["interpreter"], without_secrets(body["env"]), (), "warm")
    early = EarlySpawner.begin(home, body)
    assert early is not None
    assert (home.sockets / f"spawner-{wanted.key}.log").exists()
    early.end()
    assert early.ended


def test_it_hurries_although_the_request_comes_later_than_torch(home: Home) -> None:
    """Nobody has asked it for anything when torch is in: what can be imported later still is."""
    early = EarlySpawner.begin(home, request_of())
    assert early is not None
    (log,) = home.sockets.glob("spawner-*.log")
    try:
        wait_for(lambda: "spawner: phases" in log.read_text(), "the spawner to be warm")
        assert "torch._dynamo" in log.read_text()
        assert "torch.distributed.checkpoint" not in log.read_text()
    finally:
        early.end()


def test_cold_workers_need_none(home: Home) -> None:
    assert EarlySpawner.begin(home, {**request_of(), "spawn": "cold"}) is None


def test_an_agent_whose_own_spawner_comes_too_late_uses_the_one_that_came_first(home: Home) -> None:
    """The first one has the lock and does not listen yet; the agent's own is refused and ends."""
    make_private(home.sockets)
    wanted = Recipe(sys.executable, dict(os.environ), (), cold=True)
    path = socket_path(home.sockets, wanted.key)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)

    async def play() -> None:
        spawners = Spawners(home, needed=lambda key: False)
        # `_start` and not `get`: the lock is taken between the agent's look and its own spawner's start.
        spawners._living = _nobody  # type: ignore[method-assign]
        getting = asyncio.create_task(spawners.get(wanted))
        while not spawners._processes:
            assert not getting.done(), getting.exception()
            await asyncio.sleep(0.01)
        own = spawners._processes[wanted.key]
        while own.poll() is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # the old code gives up here
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            with usable_address(path) as address:
                listener.bind(address)
            listener.listen()
            client = await asyncio.wait_for(getting, 60)
            assert not client.gone.is_set()
        await spawners.close(quit_unused=False)

    try:
        asyncio.run(play())
    finally:
        os.close(lock)
        for left in home.sockets.iterdir():
            left.unlink()


async def _nobody(path: Path) -> None:
    return None
