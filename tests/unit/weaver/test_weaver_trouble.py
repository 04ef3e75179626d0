"""Trouble of the control plane: an incident from memory while it lasts, in the stream once it is over."""

from __future__ import annotations

import asyncio

import pytest
from weaver_story import running, until

from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.core.disturbance import KEPT
from torchloom.core.reducer import apply
from torchloom.errors import BusUnavailable
from torchloom.model.events import ControlDisturbed, Envelope, LeaseTaken
from torchloom.model.fleet import Fleet
from torchloom.weaver import trouble
from torchloom.weaver.service import Weaver
from torchloom.weaver.trouble import Troubles


def test_short_trouble_is_no_incident_and_overlapping_trouble_is_one() -> None:
    found = Troubles()
    found.begin("lease", "The lease cannot be written", 10.0)
    assert found.open_episode(14.0) is None
    found.end("lease", 14.0)
    assert found.unrecorded() is None
    found.begin("lease", "The lease cannot be written", 20.0)
    found.begin("bus", "The message bus cannot be reached", 24.0)
    found.end("lease", 25.0)
    assert found.open_episode(30.0) == ("The message bus cannot be reached", 10.0)
    found.end("bus", 32.0)
    episode = found.unrecorded()
    assert episode is not None and episode.lasted_s == 12.0 and found.open_episode(40.0) is None
    found.recorded(episode)
    assert found.unrecorded() is None


def test_only_the_leader_records_and_the_newest_are_kept() -> None:
    fleet = Fleet()

    def said(source: str, body: LeaseTaken | ControlDisturbed) -> None:
        seq = fleet.seq + 1
        apply(fleet, Envelope(f"e{seq}", source, body), seq, seq * 10**9)

    said("w2", LeaseTaken(weaver="w2", epoch=2))
    said("w1", ControlDisturbed(why="no room", lasted_s=9.0))
    assert not fleet.incidents
    for _ in range(KEPT + 5):
        said("w2", ControlDisturbed(why="no room", lasted_s=9.0))
    assert len(fleet.incidents) == KEPT and f"control.{KEPT + 5}" in fleet.incidents
    newest = fleet.incidents[f"control.{KEPT + 5}"]
    assert not newest.open and newest.verdict == "no room" and newest.job == ""
    assert newest.resolution == "recovered by itself after 9 s"


class FullBus(MemoryBus):
    """Stores no event and no lease while it is full."""

    full = False

    async def append(self, *args: object, **more: object) -> int:  # type: ignore[override]
        self.check()
        return await super().append(*args, **more)  # type: ignore[arg-type]

    async def online(self, timeout_s: float) -> None:
        self.check()
        await super().online(timeout_s)

    def check(self) -> None:
        if self.full:
            raise BusUnavailable("the NATS server cannot store or read now (no room)")


def test_a_bus_without_room_is_an_incident_that_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "INCIDENT_AFTER_S", 0.2)

    async def scenario() -> None:
        hub = MemoryHub()
        bus, stop = FullBus(hub), asyncio.Event()
        weaver = Weaver(bus, "w1")
        task = asyncio.create_task(weaver.run(stop))
        await until(weaver, lambda: weaver.active, "leads")
        assert weaver.disturbances() == []
        bus.full = True
        await until(weaver, weaver.disturbances, "it is an incident")
        lasting = weaver.disturbances()[0]
        assert lasting.open and lasting.id == "control.1" and "no room" in lasting.verdict
        bus.full = False
        await until(weaver, lambda: "control.1" in weaver.fleet.incidents, "it is recorded")
        assert weaver.disturbances() == [] and not weaver.fleet.incidents["control.1"].open
        stop.set()
        await task
        async with running(hub, "w2") as later:
            await until(later, lambda: later.ready, "ready")
            assert "recovered by itself" in later.fleet.incidents["control.1"].resolution

    asyncio.run(scenario())
