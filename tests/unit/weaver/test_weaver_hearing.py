"""A weaver that does not hear in time says nothing about silence."""

from __future__ import annotations

import asyncio
from typing import cast

from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.bus.protocol import Message, Subscription
from torchloom.weaver.hearing import EVERY_S, FEW, IN_TIME_S, Hearing


class Ears:
    """A weaver whose echoes come back after a while, on a clock of its own."""

    def __init__(self) -> None:
        self.now_s, self.delay_s, self.nodes = 100.0, 0.0, 8
        self.waiting = 0
        bus = MemoryBus.__new__(MemoryBus)
        self.hearing = Hearing(bus, "w", lambda: self.nodes, lambda: self.now_s)
        self.hearing.follow(cast(Subscription, self))
        self.sent: list[float] = []

    def pass_s(self, seconds: float) -> float:
        """For how long it has heard well at the end."""
        for _ in range(round(seconds / EVERY_S)):
            self.now_s += EVERY_S
            self.sent.append(self.now_s)
            while self.sent and self.sent[0] + self.delay_s <= self.now_s:
                message = Message("loom.v1.echo.w", repr(self.sent.pop(0)).encode(), "")
                asyncio.run(self.hearing.echo(message))
            self.hearing.well_for_s()
        return self.hearing.well_for_s()


def test_it_hears_well_from_its_start_on() -> None:
    assert Ears().pass_s(5) == 5.0


def test_late_echoes_lost_ones_and_a_backlog_count_until_they_are_over() -> None:
    for disturb, heal in (
        ({"delay_s": IN_TIME_S + 1}, {"delay_s": 0.0}),
        ({"delay_s": 1e9}, {"delay_s": 0.0, "sent": []}),
        ({"waiting": FEW + 1}, {"waiting": 0}),
    ):
        ears = Ears()
        ears.pass_s(5)
        for name, value in disturb.items():
            setattr(ears, name, value)
        assert ears.pass_s(5) == 0.0, disturb
        for name, value in heal.items():
            setattr(ears, name, value)
        assert 2.0 <= ears.pass_s(4) <= 4.0, disturb


def test_what_waits_is_compared_with_the_number_of_nodes() -> None:
    ears = Ears()
    ears.nodes, ears.waiting = 2048, 4000
    assert ears.pass_s(5) == 5.0
    ears.waiting = 5000
    assert ears.pass_s(1) == 0.0


def test_strange_echoes_are_ignored() -> None:
    ears = Ears()
    for data in (b"", b"soon", b"1e30", b"-5", b"nan"):
        asyncio.run(ears.hearing.echo(Message("loom.v1.echo.w", data, "")))
    assert ears.pass_s(1) == 1.0


def test_the_echo_goes_over_the_bus() -> None:
    async def story() -> None:
        hearing = Hearing(MemoryBus(MemoryHub()), "w", lambda: 1)
        running = asyncio.create_task(hearing.run())
        before = hearing._newest_s
        while hearing._newest_s == before:
            await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(story())
