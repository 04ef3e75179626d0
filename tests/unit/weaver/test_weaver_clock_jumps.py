"""The clock that stamps the stream is set while timers wait: none is lost, and none comes early."""

from __future__ import annotations

import asyncio
import time

import pytest
from weaver_story import SPEC, ObedientAgent, running, until

from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.model.fleet import JobState

S = 10**9
HOUR_S = 3600


class SetClock:
    """A wall clock that somebody sets."""

    def __init__(self) -> None:
        self.shift_ns = 0

    def __call__(self) -> int:
        return time.time_ns() + self.shift_ns


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S], ids=["back", "forward"])
@pytest.mark.parametrize("when", ["before", "while it waits"])
def test_a_job_that_waits_before_its_restart_is_restarted_in_time_whatever_the_clock_does(
    jump_s: int, when: str
) -> None:
    async def scenario() -> None:
        clock = SetClock()
        hub = MemoryHub(now_ns=clock)
        agent = ObedientAgent(MemoryBus(hub))
        async with running(hub, "w1") as weaver:
            await until(weaver, lambda: weaver.active, "leads")
            await agent.join()
            await until(weaver, lambda: "n1" in weaver.fleet.nodes, "joined")
            await weaver.submit("j", SPEC, {}, "me")
            await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING, "runs")
            if when == "before":
                clock.shift_ns = jump_s * S
            began = time.monotonic()
            for worker in list(weaver.fleet.jobs["j"].workers):
                await agent.die(worker.ref, 1, steps=0)
            await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.BACKOFF, "waits")
            clock.shift_ns = jump_s * S
            await until(weaver, lambda: weaver.fleet.jobs["j"].generation == 2, "is started again")
            waited_s = time.monotonic() - began
            # 0.5 s and a quarter more or less; at half pace twice as long. Only the machine makes it longer.
            assert waited_s > 0.3, "not because a clock was set forward"
            assert waited_s < 60, "not an hour later"

    asyncio.run(scenario())
