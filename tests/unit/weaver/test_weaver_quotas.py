"""An agent's share of messages and bytes: what is beyond is dropped and counted, and nobody else's is."""

from __future__ import annotations

import asyncio

import pytest
from weaver_story import SPEC, ObedientAgent, running, until

from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.model.fleet import JobState
from torchloom.weaver import quotas
from torchloom.weaver.quotas import Quotas
from torchloom.wire import subjects


def test_a_share_is_so_many_messages_and_bytes_a_second_and_grows_back() -> None:
    now_s = [100.0]
    shares = Quotas(lambda node: 8, lambda: now_s[0])
    rate = quotas.MESSAGES_A_S + 8 * quotas.MESSAGES_A_WORKER
    taken = sum(shares.admits(subjects.telemetry("n1"), 100) for _ in range(100_000))
    assert taken == int(rate * quotas.BURST_S)
    assert shares.dropped == {"n1": 100_000 - taken}
    assert shares.admits(subjects.telemetry("n2"), 100), "another agent has a share of its own"
    now_s[0] += 1.0
    assert sum(shares.admits(subjects.windows("n1"), 100) for _ in range(10_000)) == int(rate)
    big = 1 << 20
    burst = quotas.BURST_S * (quotas.BYTES_A_S + 8 * quotas.BYTES_A_WORKER)
    assert sum(shares.admits(subjects.telemetry("n3"), big) for _ in range(1000)) == int(burst / big)


@pytest.mark.parametrize("workers", [1, 8, 64, 1024])
def test_an_agent_with_many_workers_has_room_for_their_telemetry(workers: int) -> None:
    """Four pulses and two windows of every worker a second, sixteen workers to a message."""
    now_s = [0.0]
    shares = Quotas(lambda node: workers, lambda: now_s[0])
    for _ in range(60 * 4):
        now_s[0] += 0.25
        for _ in range(2 * (1 + workers // 16)):
            assert shares.admits(subjects.telemetry("n1"), 16 * 4096)
    assert shares.dropped == {}


def test_a_flood_from_one_agent_does_not_keep_another_from_being_served() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent, attacker = ObedientAgent(MemoryBus(hub), "n2"), MemoryBus(hub)
        async with running(hub, "w1") as weaver:
            await until(weaver, lambda: weaver.active, "leads")
            for _ in range(200_000):
                await attacker.publish(subjects.telemetry("n1"), b"junk")
            await agent.join()
            await until(weaver, lambda: "n2" in weaver.fleet.nodes, "joined")
            await weaver.submit("j", SPEC, {}, "me")
            await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING, "runs")
            assert weaver.dropped["n1"] > 100_000 and "n2" not in weaver.dropped

    asyncio.run(scenario())
