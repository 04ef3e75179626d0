"""Timers fire by the clock that stamps the stream, whatever the weaver's own says; and time in which a weaver
did not run is nobody's silence."""

from __future__ import annotations

import asyncio
import time

import pytest
from weaver_story import running, until

from torchloom.bus.memory import MemoryHub
from torchloom.model.fleet import Fleet
from torchloom.model.messages import Telemetry
from torchloom.model.timers import Timer, TimerKind
from torchloom.weaver.clock import StreamClock
from torchloom.weaver.live_view import LiveView

S = 10**9


@pytest.mark.parametrize("skew_s", [-1000, 0, 1000])
def test_a_timer_fires_by_the_clock_of_the_stream(skew_s: int) -> None:
    async def scenario() -> None:
        def now_ns() -> int:
            return time.time_ns() + skew_s * S

        async with running(MemoryHub(now_ns=now_ns), "w1") as weaver:
            await until(weaver, lambda: weaver.active, "leads")
            due_ns = now_ns() + S // 4
            weaver.fleet.timers["t"] = Timer(id="t", kind=TimerKind.BACKOFF, at_ns=due_ns, job="gone")
            await until(weaver, lambda: "t" not in weaver.fleet.timers, "fired")
            assert weaver.fleet.now_ns >= due_ns

    asyncio.run(scenario())


def test_a_timer_that_is_set_again_for_the_same_moment_fires_again() -> None:
    async def scenario() -> None:
        async with running(MemoryHub(), "w1") as weaver:
            await until(weaver, lambda: weaver.active, "leads")
            timer = Timer(id="t", kind=TimerKind.BACKOFF, at_ns=time.time_ns() - S, job="gone")
            for _ in range(2):  # as when the first came too early to matter
                weaver.fleet.timers["t"] = timer
                await until(weaver, lambda: "t" not in weaver.fleet.timers, "fired")

    asyncio.run(scenario())


def test_the_clock_of_the_stream_is_told_by_its_stamps() -> None:
    clock = StreamClock()
    clock.heard(500 * S, local_ns=10 * S)  # of old, as in a replay
    clock.heard(1000 * S, local_ns=11 * S)
    assert clock.now_ns(local_ns=12 * S) == 1001 * S
    clock.heard(1004 * S, local_ns=17 * S)  # it was on its way for two seconds
    assert clock.now_ns(local_ns=17 * S) == 1006 * S
    clock.heard(900 * S, local_ns=18 * S)  # the clock was set back
    assert clock.now_ns(local_ns=19 * S) == 901 * S


def test_time_in_which_the_weaver_stood_still_is_nobodys_silence() -> None:
    live = LiveView()
    live.listen(10.0)
    live.hear(Fleet(), Telemetry(node="a", session="s", at_ns=0, epoch=1), 10.5)
    live.hear(Fleet(), Telemetry(node="b", session="s", at_ns=0, epoch=1), 11.0)
    live.listen(11.5)
    live.listen(21.5)
    assert live.last_heard_s == {"a": 20.5, "b": 21.0}
    for tenth in range(1, 41):
        live.listen(21.5 + tenth / 10)
    assert live.last_heard_s == {"a": 20.5, "b": 21.0}, "who listens and hears nothing has heard silence"
    live.hear(Fleet(), Telemetry(node="b", session="s", at_ns=0, epoch=1), 40.0)
    assert live.last_heard_s == {"a": 35.0, "b": 40.0}
