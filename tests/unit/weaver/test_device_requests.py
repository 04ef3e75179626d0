"""What monitors say of devices reaches the stream bounded, whatever they send and how fast."""

from __future__ import annotations

import asyncio
import json
import random
import time
from difflib import get_close_matches
from typing import Any

import pytest

from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.bus.nats_config import LEADER, agent_permissions
from torchloom.bus.protocol import Message
from torchloom.errors import Conflict, NotFound
from torchloom.model.devices import Device, HealthReport
from torchloom.model.events import DeviceHealthReported, DeviceMarked, Event
from torchloom.weaver.live_view import LiveView
from torchloom.weaver.monitors import MESSAGES, MESSAGES_A_SECOND, Monitors
from torchloom.weaver.publisher import Publisher
from torchloom.weaver.requests.devices import (
    BURST,
    MOST_SOURCES,
    DeviceRequests,
)


class Recording(Publisher):
    """A publisher that is ready and leads, and applies what is said of health."""

    def __init__(self) -> None:
        super().__init__(MemoryBus(MemoryHub()), "w")
        self.said: list[Event] = []
        for name in ("GPU-aaaa", "GPU-aabb", "GPU-cccc"):
            self.fleet.devices[name] = Device(id=name, kind="gpu", name="H100", node="n")

    @property
    def ready(self) -> bool:
        return True

    @property
    def leads(self) -> bool:
        return True

    async def say(self, kind: str, body: Event) -> None:
        self.said.append(body)
        if isinstance(body, DeviceHealthReported):
            for one in body.health:
                self.fleet.devices[one.device].health[one.source] = one


def requests() -> tuple[DeviceRequests, Recording, list[float]]:
    stream, now = Recording(), [0.0]
    return DeviceRequests(stream, LiveView(), clock=lambda: now[0]), stream, now


def message(body: Any, source: str = "rack") -> Message:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message(subject=f"loom.v1.health.{source}", data=data)


def test_a_device_is_found_by_a_beginning_that_no_other_has_and_near_ones_are_named() -> None:
    found, _, _ = requests()
    assert found.find("GPU-aaaa") == "GPU-aaaa" and found.find("gpu-cc") == "GPU-cccc"
    with pytest.raises(NotFound) as ambiguous:
        found.find("GPU-aa")
    assert "GPU-aaaa or GPU-aabb" in str(ambiguous.value.hint)
    with pytest.raises(NotFound) as near:
        found.find("GPU-cxcc")
    assert "GPU-cccc" in str(near.value.hint)
    with pytest.raises(NotFound):
        found.find("")


def test_an_unknown_id_costs_little_in_a_large_fleet() -> None:
    """A monitor may ask for one again and again."""
    found, stream, _ = requests()
    chance = random.Random(5)
    ids = [f"GPU-{chance.randbytes(16).hex()}" for _ in range(3000)]
    stream.fleet.devices |= {id: Device(id=id, kind="gpu", name="H100", node="n") for id in ids}
    begin_s = time.process_time()
    with pytest.raises(NotFound) as near:
        found.find(ids[7][:-1] + "x")
    ours_s, begin_s = time.process_time() - begin_s, time.process_time()
    get_close_matches(ids[7][:-1] + "x", ids, 3, 0.4)
    assert ids[7] in str(near.value.hint) and ours_s < 0.5 * (time.process_time() - begin_s)


@pytest.mark.parametrize(
    "name", ["..", "a/b", "GPU-aaaa/../GPU-cccc", "\x1b[2J", "\x00", "x" * 10_000, "é" * 200, "*", " "]
)
def test_a_strange_id_is_refused_in_one_short_line(name: str) -> None:
    found, _, _ = requests()
    with pytest.raises(NotFound) as refused:
        found.find(name)
    assert len(str(refused.value)) < 500 and str(refused.value).isprintable()


def test_a_device_in_use_cannot_be_returned_and_a_dry_run_says_nothing() -> None:
    found, stream, _ = requests()
    with pytest.raises(Conflict, match="in use already"):
        asyncio.run(found.mark("GPU-aaaa", "return", "ann", dry_run=False))
    asyncio.run(found.mark("GPU-aaaa", "fail", "ann", dry_run=True))
    assert stream.said == []
    asyncio.run(found.mark("GPU-aaaa", "fail", "ann", "hot", dry_run=False))
    (event,) = stream.said
    assert isinstance(event, DeviceMarked) and (event.device, event.node, event.why) == (
        "GPU-aaaa",
        "n",
        "hot",
    )


def test_a_flood_of_reports_is_bounded_and_counted() -> None:
    found, stream, now = requests()

    async def flood() -> None:
        for index in range(100_000):
            level = ("ok", "degraded")[index % 2]
            report = HealthReport(device="GPU-aaaa", level=level, source="rack")  # type: ignore[arg-type]
            await found.health("GPU-aaaa", report, None, "ann")
            now[0] += 1e-4  # 10,000 a second for 10 s

    asyncio.run(flood())
    assert BURST <= len(stream.said) <= BURST + 11
    assert found.health_dropped() > 40_000
    report = HealthReport(device="GPU-cccc", level="failed", source="rack")
    assert asyncio.run(found.health("GPU-cccc", report, None, "ann")), "other devices are still listened to"


def test_a_monitor_that_floods_the_bus_is_cut_off_and_others_are_heard() -> None:
    now = [0.0]
    found, _, _ = requests()
    monitors = Monitors(MemoryBus(MemoryHub()), found.hear, clock=lambda: now[0])
    taken = 0
    for _ in range(100_000):
        taken += monitors.admits("loom.v1.health.flood", 100)
        now[0] += 1e-4  # 10,000 a second for 10 s
    assert taken <= MESSAGES + 10.1 * MESSAGES_A_SECOND and monitors.dropped == 100_000 - taken
    assert monitors.admits("loom.v1.health.rack", 100)
    assert not monitors.admits("loom.v1.health.rack", 1 << 20), "too large"


def test_a_flooded_subject_is_closed_for_a_while_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchloom.weaver.monitors.CLOSED_S", 0.05)
    monkeypatch.setattr("torchloom.weaver.monitors.FLOOD", 10)
    monkeypatch.setattr("torchloom.weaver.monitors.MESSAGES", 5.0)

    async def play() -> None:
        hub, heard = MemoryHub(), []

        async def hear(message: Message) -> None:
            heard.append(message.data)

        sender = MemoryBus(hub)
        monitors = Monitors(MemoryBus(hub), hear)
        task = asyncio.create_task(monitors.run())
        try:
            async with asyncio.timeout(120):
                while not monitors.closed:
                    await sender.publish("loom.v1.health.flood", b"x")
                    await asyncio.sleep(0)
                while b"rack" not in heard:
                    await sender.publish("loom.v1.health.rack", b"rack")
                    await asyncio.sleep(0.01)
        finally:
            task.cancel()

    asyncio.run(play())


def test_a_monitor_with_a_new_name_for_every_message_does_not_fill_the_memory() -> None:
    found, _, _ = requests()

    async def lie() -> None:
        for index in range(1000):
            body = {"device": "GPU-aaaa", "level": "ok", "values": {"x": index}}
            await found.hear(message(body, f"m{index}"))

    asyncio.run(lie())
    assert len(found.readings("GPU-aaaa")) <= MOST_SOURCES


def test_repetitions_are_not_recorded() -> None:
    found, stream, now = requests()

    async def repeat() -> None:
        for _ in range(50):
            now[0] += 10.0
            await found.hear(message({"device": "GPU-aaaa", "level": "failing", "values": {"x": 1}}))

    asyncio.run(repeat())
    assert len(stream.said) == 1 and found.health_dropped() == 0
    assert found.readings("GPU-aaaa")[0].values == {"x": 1}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "1" + "0" * 400, "null", '"1"'])
def test_what_is_no_number_is_garbage_on_the_bus(number: str) -> None:
    found, stream, _ = requests()
    body = b'{"device": "GPU-aaaa", "level": "failed", "values": {"x": %s}}' % number.encode()
    asyncio.run(found.hear(message(body)))
    assert stream.said == [] and found.health_dropped() == 1 and found.readings("GPU-aaaa") == []


@pytest.mark.parametrize("source", ["\x1b[2J", "a/b", "x" * 65, "", "ä\x00"])
def test_a_monitor_with_a_strange_name_is_not_listened_to(source: str) -> None:
    found, stream, _ = requests()
    asyncio.run(found.hear(message({"device": "GPU-aaaa", "level": "failed"}, source)))
    assert stream.said == [] and found.health_dropped() == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff\x00", b"[]", b"{", {"device": "GPU-aaaa"}, {"device": "GPU-nowhere", "level": "failed"},
     {"device": "GPU-aaaa", "level": "superb"}, {"device": ["x"], "level": "failed"}],
)  # fmt: skip
def test_garbage_on_the_bus_is_counted_and_nothing_else(body: Any) -> None:
    found, stream, _ = requests()
    asyncio.run(found.hear(message(body)))
    assert stream.said == [] and found.health_dropped() == 1


def test_a_node_s_account_may_not_report_as_a_monitor_nor_for_another_node() -> None:
    """What it says of its own devices is in its node's events, which the core takes for that node only."""
    publish = agent_permissions("n1")["publish"]
    assert isinstance(publish, list) and publish
    for subject in publish:
        assert not subject.startswith("loom.v1.health") and not {"*", ">"} & set(subject), subject
        assert "n1" in subject.split(".") or subject == LEADER
