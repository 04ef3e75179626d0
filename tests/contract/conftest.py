"""One stage per bus: the contract tests see `open`, `cut` and `mend`, and not what is behind them."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from torchloom.bus.embedded import EmbeddedNats
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.bus.nats import NatsBus
from torchloom.bus.protocol import Bus

TEST_TIMEOUT_S = 240


class Stage(Protocol):
    async def open(self) -> Bus:
        """One more client, provisioned."""
        ...

    async def cut(self) -> None:
        """Nobody can reach the bus any more."""
        ...

    async def mend(self) -> None: ...

    async def close(self) -> None: ...


class MemoryStage:
    def __init__(self) -> None:
        self._hub: MemoryHub | None = None
        self._buses: list[MemoryBus] = []

    async def open(self) -> Bus:
        self._hub = self._hub or MemoryHub()
        bus = self._hub.bus()
        await bus.provision()
        self._buses.append(bus)
        return bus

    async def cut(self) -> None:
        for bus in self._buses:
            bus.partition()

    async def mend(self) -> None:
        for bus in self._buses:
            bus.heal()

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close()


class NatsStage:
    """A real server; cutting it off means SIGKILL, mending means a restart on the same store."""

    def __init__(self, directory: Path) -> None:
        self.server = EmbeddedNats(directory, "n1")
        self._process: subprocess.Popen[bytes] | None = None
        self._buses: list[NatsBus] = []

    def start(self) -> None:
        self._process = self.server.start()
        self.server.wait_ready()

    async def open(self) -> Bus:
        bus = await NatsBus.connect(self.server.address("weaver"), name="weaver")
        self._buses.append(bus)
        await bus.provision()
        return bus

    async def open_agent(self) -> NatsBus:
        bus = await NatsBus.connect(self.server.address("agent"), name="agent")
        self._buses.append(bus)
        return bus

    async def cut(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        while any(bus.connected for bus in self._buses):
            await asyncio.sleep(0.01)

    async def mend(self) -> None:
        self.start()

    async def close(self) -> None:
        for bus in self._buses:
            await bus.close()

    def stop(self) -> None:
        self.server.stop()


@pytest.fixture
def nats_stage(tmp_path: Path) -> Iterator[NatsStage]:
    stage = NatsStage(tmp_path / "nats")
    stage.start()
    yield stage
    stage.stop()
    assert not stage.server.running()


@pytest.fixture(params=["memory", "nats"])
def stage(request: pytest.FixtureRequest) -> Stage:
    if request.param == "memory":
        return MemoryStage()
    found: NatsStage = request.getfixturevalue("nats_stage")
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests, and close their stage in the same loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def play() -> None:
        try:
            await asyncio.wait_for(pyfuncitem.obj(**arguments), TEST_TIMEOUT_S)
        finally:
            for name in ("stage", "nats_stage"):
                if name in arguments:
                    await arguments[name].close()
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            if left:
                await asyncio.wait(left, timeout=5)
            assert all(task.done() for task in left), f"tasks left behind: {left}"

    asyncio.run(play())
    return True
