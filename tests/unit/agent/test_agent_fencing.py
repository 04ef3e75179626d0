"""Leases of hosts whose jobs fence themselves: none is started from a command of long ago."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from weaver_story import ObedientAgent, running, until

from torchloom.agent.host import Host
from torchloom.agent.processes import fencing
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.errors import TimedOut
from torchloom.model.fleet import NodeState


async def kept(host: Host, bus: MemoryBus) -> None:
    """Asked until it is answered: on a busy machine that may take longer than one question waits."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(TimedOut):
                await fencing.lease(host, bus)
                return


def test_a_host_that_counts_as_silent_keeps_what_runs_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fencing, "ANSWER_WITHIN_S", 0.5)
    monkeypatch.setattr(fencing, "ASK_EVERY_S", 0.01)
    host: Any = SimpleNamespace(node="n1", session="s")

    async def scenario(host: Host) -> None:
        hub = MemoryHub()
        bus = MemoryBus(hub)
        async with running(hub, "w1") as weaver:
            await until(weaver, lambda: weaver.active, "leads")
            with pytest.raises(TimedOut):
                await fencing.lease(host, bus, "start")  # nobody knows this host
            await ObedientAgent(MemoryBus(hub)).join()
            await until(weaver, lambda: "n1" in weaver.fleet.nodes, "joined")
            began_ns = fencing.now_ns()
            assert began_ns <= await fencing.wait_for_lease(host, bus, lambda: True) <= fencing.now_ns()

            known = weaver.fleet.nodes["n1"]
            known.state = NodeState.LEFT  # as silent as one that is unreachable, and stays so
            await kept(host, bus)
            with pytest.raises(TimedOut):
                await fencing.lease(host, bus, "start")
            waiting = asyncio.ensure_future(fencing.wait_for_lease(host, bus, lambda: True))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            known.state = NodeState.READY
            assert await waiting > began_ns
            assert await fencing.wait_for_lease(host, bus, lambda: False) == 0

    asyncio.run(scenario(host))
