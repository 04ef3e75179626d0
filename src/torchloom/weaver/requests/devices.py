"""What people and monitors say about devices: checked, bounded, and published as events. Decides nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from heapq import nlargest
from os.path import commonprefix
from typing import Literal

import msgspec

from torchloom.bus.protocol import Message
from torchloom.core.devices.preview import AffectedJob, preview
from torchloom.core.devices.testing import why_no_test
from torchloom.errors import BusUnavailable, Conflict, NotFound, TimedOut, UsageError
from torchloom.model.device_wear import DeviceResult, TestResult
from torchloom.model.devices import (
    SOURCE_NAME,
    DeviceMark,
    DevicePolicy,
    DeviceReading,
    HealthClass,
    HealthReport,
)
from torchloom.model.events import (
    DeviceHealthReported,
    DeviceMarked,
    DevicePolicySet,
    DeviceTestRequested,
    DeviceTestsImported,
)
from torchloom.weaver.live_view import LiveView
from torchloom.weaver.publisher import Publisher

log = logging.getLogger(__name__)

BURST, A_SECOND = 8.0, 1.0
"""Changes of health that one device may report: at once, and per second in the long run."""
BURST_OF_ALL, A_SECOND_OF_ALL = 200.0, 20.0
"""The same for all devices together: every one is an event of the stream."""
MOST_NAMES = 4096
MOST_SOURCES = 16
"""Sources whose newest measurements of a device are kept."""
NEAR = 3
NEAR_LOOKED_AT = 256
RESULTS_AN_EVENT = 100
"""So that an event stays far below what the bus carries."""


class BusHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A report of health, as monitors publish it."""

    device: str
    level: HealthClass
    why: str = ""
    values: dict[str, float] = {}


_decoder = msgspec.json.Decoder(BusHealth)


def _near(name: str, known: Iterable[str]) -> list[str]:
    """Ids that are written alike. Comparing is slow, so in a large fleet only those that begin alike are."""
    wanted = name.lower()
    alike = nlargest(
        NEAR_LOOKED_AT,
        known,
        key=lambda id: len(commonprefix((id.lower(), wanted))),  # noqa: RUF071  # letters are meant
    )
    return get_close_matches(name, alike, NEAR, 0.4)


class Rate:
    """A bucket of tokens by name."""

    def __init__(self, burst: float, a_second: float, clock: Callable[[], float]) -> None:
        self._burst, self._a_second, self._clock = burst, a_second, clock
        self._left: dict[str, tuple[float, float]] = {}

    def admits(self, name: str) -> bool:
        now_s = self._clock()
        if len(self._left) >= MOST_NAMES and name not in self._left:
            self._left.clear()
        left, at_s = self._left.get(name, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._a_second)
        self._left[name] = (left - 1 if left >= 1 else left, now_s)
        return left >= 1


class DeviceRequests:
    def __init__(
        self, stream: Publisher, live: LiveView, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._live = live
        self._each = Rate(BURST, A_SECOND, clock)
        self._all = Rate(BURST_OF_ALL, A_SECOND_OF_ALL, clock)
        self._also_dropped: Callable[[], int] = lambda: 0
        self._dropped = 0
        """Changes of health beyond the rate, and messages that cannot be understood."""

    def readings(self, device: str) -> list[DeviceReading]:
        return list(self._live.readings.get(device, {}).values())

    def health_dropped(self) -> int:
        return self._dropped + self._also_dropped()

    def count_also(self, dropped: Callable[[], int]) -> None:
        """What was dropped before it came here."""
        self._also_dropped = dropped

    def find(self, name: str) -> str:
        """The id of a device that is named by its id or by a beginning of it that no other one has."""
        known = self._stream.fleet.devices
        if name in known:
            return name
        begins = [id for id in known if id.lower().startswith(name.lower())] if len(name) > 3 else []
        if len(begins) == 1:
            return begins[0]
        near = begins[:NEAR] or _near(name, known)
        hint = f"did you mean {' or '.join(near)}?" if near else "`loom devices` lists them"
        raise NotFound(f"There is no device {name[:80]!r}", hint=hint)

    async def mark(
        self, name: str, mark: DeviceMark, by: str, why: str = "", *, force: bool = False, dry_run: bool
    ) -> tuple[str, list[AffectedJob]]:
        """Take a device out of use or return it; its id, and what that does to the jobs on it."""
        self._stream.check_ready()
        id = self.find(name)
        device = self._stream.fleet.devices[id]
        if mark == "return" and device.out is None:
            raise Conflict(f"{id} is in use already: nobody took it out.")
        if mark == "drain" and device.out is not None and device.out.how == "failed":
            raise Conflict(f"{id} is out of use already ({device.out.describe()}).")
        affected = preview(self._stream.fleet, id, mark)
        if not dry_run:
            event = DeviceMarked(
                device=id,
                mark=mark,
                by=by,
                why=why,
                node=device.node,
                force=force,
                step_s=self._step_s(affected),
            )
            await self._stream.say("device", event)
        return id, affected

    def _step_s(self, affected: list[AffectedJob]) -> dict[str, float]:
        found = {}
        for one in affected:
            progress = self._live.progress(self._stream.fleet, one.job)
            if progress:
                found[one.job] = max(step.step_s for step in progress)
        return found

    async def health(self, name: str, report: HealthReport, reading: DeviceReading | None, by: str) -> bool:
        """Take in what a monitor says of a device; whether it changed anything that is recorded."""
        self._stream.check_ready()
        if not report.source:
            raise UsageError("A report of a device's health names its source.")
        id = self.find(name)
        if reading is not None:
            kept = self._live.readings.setdefault(id, {})
            if report.source in kept or len(kept) < MOST_SOURCES:
                kept[report.source] = reading
        device = self._stream.fleet.devices[id]
        said = device.health.get(report.source)
        if (said.level if said is not None else "ok") == report.level:
            return False
        if not (self._each.admits(id) and self._all.admits("")):
            self._dropped += 1
            return False
        event = DeviceHealthReported(node=device.node, health=(report,), by=by)
        await self._stream.say("device", event)
        return True

    async def hear(self, message: Message) -> None:
        """A monitor's report on the bus. Garbage is counted and costs nothing else."""
        if not self._stream.leads:
            return
        try:
            said = _decoder.decode(message.data)
        except (msgspec.DecodeError, RecursionError):
            self._dropped += 1
            return
        source = message.subject.rpartition(".")[2]
        if said.device not in self._stream.fleet.devices or not SOURCE_NAME.fullmatch(source):
            self._dropped += 1
            return
        values = {name[:64]: value for name, value in list(said.values.items())[:64]}
        report = HealthReport(device=said.device, level=said.level, why=said.why[:500], source=source)
        reading = DeviceReading(device=said.device, source=source, values=values) if values else None
        try:
            await self.health(said.device, report, reading, f"bus:{source}")
        except (BusUnavailable, TimedOut) as error:
            log.info("a report of health from %s waits for the next one: %s", source, error)

    async def test(self, name: str, by: str, why: str, *, then_return: bool) -> str:
        """Have a device tested, and returned to use if it passes; its id. Refused while a worker uses it."""
        self._stream.check_ready()
        id = self.find(name)
        device = self._stream.fleet.devices[id]
        if device.testing is not None:
            raise Conflict(f"{id} is being tested already.")
        if then_return and device.out is None:
            raise Conflict(f"{id} is in use already: nobody took it out.")
        if why_not := why_no_test(self._stream.fleet, device):
            raise Conflict(f"{id} cannot be tested now: {why_not}.")
        then: Literal["nothing", "return"] = "return" if then_return else "nothing"
        await self._stream.say("device", DeviceTestRequested(device=id, by=by, why=why, then=then))
        return id

    async def import_tests(
        self, results: Sequence[tuple[str, int | None, TestResult]], by: str
    ) -> tuple[list[str], list[str]]:
        """Record results of tests that ran elsewhere, each of a GPU of a node, or of a node; the devices they
        were recorded for, and the places that nobody knows."""
        self._stream.check_ready()
        found: list[DeviceResult] = []
        unknown: list[str] = []
        for node, gpu, result in results:
            devices = self._at(node, gpu)
            found += [DeviceResult(device, result) for device in devices]
            if not devices:
                unknown.append(node if gpu is None else f"{node}:{gpu}")
        for at in range(0, len(found), RESULTS_AN_EVENT):
            event = DeviceTestsImported(results=tuple(found[at : at + RESULTS_AN_EVENT]), by=by)
            await self._stream.say("device", event)
        return [one.device for one in found], unknown

    def _at(self, name: str, gpu: int | None) -> list[str]:
        """Devices of a node, which is named by its id or its host's name."""
        nodes = self._stream.fleet.nodes
        node = nodes.get(name) or next((n for n in nodes.values() if n.inventory.hostname == name), None)
        listed = [use.device for use in node.inventory.devices] if node is not None else []
        known = [id for id in listed if id in self._stream.fleet.devices]
        if gpu is None:
            return known
        return [id for at, id in enumerate(listed) if at == gpu and id in known]

    async def set_policy(self, policy: DevicePolicy, by: str) -> None:
        self._stream.check_ready()
        await self._stream.say("device", DevicePolicySet(policy=policy, by=by))
