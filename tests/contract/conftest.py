"""One stage per bus: the contract tests see `open`, `cut` and `mend`, and not what is behind them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from torchloom.bus import nats, nats_lease
from torchloom.bus.embedded import EmbeddedNats
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.bus.nats import NatsBus
from torchloom.bus.protocol import Bus

TEST_TIMEOUT_S = 240
ANSWER_WITHIN_S = 120
"""Where a test says nothing else: a machine may stand still for longer than a service should wait."""


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
        self.server.wait_ready(ANSWER_WITHIN_S)

    async def open(self) -> Bus:
        bus = await self._connect("weaver")
        await bus.provision()
        return bus

    async def open_agent(self) -> NatsBus:
        return await self._connect("agent")

    async def _connect(self, role: str) -> NatsBus:
        bus = await NatsBus.connect(self.server.address(role), name=role, wait_s=ANSWER_WITHIN_S)
        patient: Any = bus
        patient.append = functools.partial(bus.append, timeout_s=ANSWER_WITHIN_S)
        patient.request = functools.partial(bus.request, timeout_s=ANSWER_WITHIN_S)
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
def nats_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsStage]:
    for module in (nats, nats_lease):
        monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", ANSWER_WITHIN_S)
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
                await asyncio.wait(left, timeout=60)
            assert all(task.done() for task in left), f"tasks left behind: {left}"

    asyncio.run(play())
    return True
