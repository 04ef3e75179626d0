"""Counts what wears on a device: in the agent from one reading to the next, in the core over days. Pure.

The agent adds up what is new in each reading and sends the sums once an hour, or every six hours if nothing
happened (agent/health/wear_reports.py). The core keeps two sums for each device that fade with time, so the
record of a device stays small however old it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import astuple

from torchloom.core.devices.health_class import BAD_XIDS, FATAL_XIDS, THROTTLING, xid_codes
from torchloom.model.device_wear import DeviceWear, WearCounts, WearHistory, WearSlot
from torchloom.model.devices import DeviceReading

DAY_S = 86_400.0
RECENT_S = 6 * 3600.0
WEEK_S = 7 * DAY_S
SLOT_S = 6 * 3600.0
KEPT_SLOTS = 9
LONGEST_GAP_S = 60.0
"""Two readings further apart are not one time of watching: the source did not answer in between."""
_COUNTERS = {
    "ecc_corrected_errors": "ecc_corrected",
    "ecc_uncorrected_errors": "hard_errors",
    "remapped_rows": "hard_errors",
    "pcie_replays": "link_errors",
    "nvlink_errors": "link_errors",
}


class _Watched(Struct):
    """What one source said of one device last."""

    at_s: float
    values: dict[str, float]
    xids: int


class WearMeter(Struct):
    """The agent's sums since its last report."""

    sums: dict[str, dict[str, float]] = field(default_factory=dict)
    watched: dict[tuple[str, str], _Watched] = field(default_factory=dict)
    until_s: dict[str, float] = field(default_factory=dict)
    """Up to when each device was watched, by any source."""

    def take(self, reading: DeviceReading, now_s: float) -> None:
        """Add what is new in a reading. A counter that went back was reset and counts from zero."""
        if reading.kind != "gpu" or reading.error:
            return
        key, codes = (reading.device, reading.source), _bad_xids(reading.states)
        last = self.watched.get(key)
        values = {name: v for name, v in reading.values.items() if name in _COUNTERS}
        self.watched[key] = _Watched(now_s, values, codes)
        if last is None or now_s - last.at_s > LONGEST_GAP_S:
            return
        sums = self.sums.setdefault(reading.device, {})
        for name, value in values.items():
            before = last.values.get(name)
            if before is not None and value != before:
                self._add(sums, _COUNTERS[name], value - before if value > before else value)
        self._add(sums, "hard_errors", codes - last.xids if codes > last.xids else 0.0)
        since_s = max(last.at_s, self.until_s.get(reading.device, last.at_s))
        self._add(sums, "watched_s", max(0.0, now_s - since_s))
        if any(state.startswith(THROTTLING) for state in reading.states):
            self._add(sums, "throttled_s", max(0.0, now_s - since_s))
        self.until_s[reading.device] = now_s

    def report(self) -> tuple[DeviceWear, ...]:
        """The sums, which start again from zero."""
        found = tuple(DeviceWear(device, WearCounts(**sums)) for device, sums in sorted(self.sums.items()))
        self.sums = {}
        return tuple(one for one in found if one.counts.watched_s > 0)

    @property
    def eventful(self) -> bool:
        """Whether there is more to report than time in which nothing happened."""
        return any(name != "watched_s" and value for one in self.sums.values() for name, value in one.items())

    @staticmethod
    def _add(sums: dict[str, float], name: str, value: float) -> None:
        if value:
            sums[name] = sums.get(name, 0.0) + value


def _bad_xids(states: Iterable[str]) -> int:
    return sum(code in BAD_XIDS | FATAL_XIDS for code in xid_codes(states))


def grown(history: WearHistory | None, counts: WearCounts, now_ns: int) -> WearHistory:
    """The record of a device after some more was counted."""
    if history is None:
        slots = _slotted((), counts, now_ns)
        return WearHistory(at_ns=now_ns, watched_s=counts.watched_s, recent=counts, week=counts, slots=slots)
    faded = at(history, now_ns)
    return WearHistory(
        at_ns=now_ns,
        watched_s=history.watched_s + counts.watched_s,
        recent=_sum(faded.recent, counts, 1.0),
        week=_sum(faded.week, counts, 1.0),
        slots=_slotted(history.slots, counts, now_ns),
    )


def _slotted(slots: tuple[WearSlot, ...], counts: WearCounts, now_ns: int) -> tuple[WearSlot, ...]:
    number = slot_of(now_ns)
    continues = bool(slots) and slots[-1].number >= number
    last, kept = (slots[-1], slots[:-1]) if continues else (WearSlot(number), slots)
    grown_slot = WearSlot(
        last.number,
        last.watched_s + counts.watched_s,
        last.ecc_corrected + counts.ecc_corrected,
        last.link_errors + counts.link_errors,
    )
    return (*kept, grown_slot)[-KEPT_SLOTS:]


def slot_of(now_ns: int) -> int:
    """The number of the span of six hours that it is in."""
    return int(now_ns // int(SLOT_S * 1e9))


def at(history: WearHistory, now_ns: int) -> WearHistory:
    """The record as it has faded by now."""
    passed_s = max(0, now_ns - history.at_ns) / 1e9
    none = WearCounts()
    return WearHistory(
        at_ns=max(now_ns, history.at_ns),
        watched_s=history.watched_s,
        recent=_sum(none, history.recent, 0.5 ** (passed_s / RECENT_S)),
        week=_sum(none, history.week, 0.5 ** (passed_s / WEEK_S)),
        slots=history.slots,
    )


def _sum(one: WearCounts, other: WearCounts, factor: float) -> WearCounts:
    return WearCounts(*(a + factor * b for a, b in zip(astuple(one), astuple(other), strict=True)))
