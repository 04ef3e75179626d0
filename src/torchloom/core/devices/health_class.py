"""Turns measurements of a device into a class of health, with the reason in words. Pure.

`failed` only for what leaves no doubt: the driver says that the GPU is lost, or reports an Xid after which
nothing can run on it. A value that is high once is nothing: throttling must last, and errors must be new.
Better is believed only after a while, so that a class does not flap.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from torchloom.core.device_faults.xids import meaning_of
from torchloom.model.devices import CLASSES, DeviceReading, HealthClass

FATAL_XIDS = frozenset({62, 64, 79, 95, 140, 143})
"""The GPU is off the bus, its controller halted, or its memory cannot be repaired or trusted."""
BAD_XIDS = frozenset({48, 63, 74, 92, 94, 121, 122, 123, *range(144, 151)})
"""Hardware that works and gave wrong data, or had to repair itself."""
THROTTLING = ("throttle: thermal", "throttle: hardware", "throttle: power brake")
"""Not the power cap: many GPUs run at it all day, as intended."""
LASTING_S = 10.0
BETTER_AFTER_S = 30.0
CORRECTED_PER_HOUR = 100.0
REPLAYS_PER_MINUTE = 60.0
LINK_ERRORS_PER_MINUTE = 60.0
_WINDOW_S = 3600.0
_MOST_KEPT = 240


class DeviceMemory(Struct):
    """What has to be remembered of one device, for one source."""

    throttling_since_s: float | None = None
    counts: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """When counters were read, oldest first, and their values."""
    level: HealthClass = "ok"
    key: str = ""
    why: str = ""
    better_since_s: float | None = None


class Judged(Struct, frozen=True):
    level: HealthClass
    why: str
    key: str
    """Changes when there is something new to say; measurements in `why` may change without it."""


def judge(memory: DeviceMemory, reading: DeviceReading, now_s: float) -> Judged | None:
    """The new class of the device, if there is something new to say about it."""
    found = sorted(_signs(memory, reading, now_s), key=lambda one: -CLASSES.index(one.level))
    now = found[0] if found else Judged("ok", "", "")
    if now.key == memory.key:
        memory.better_since_s = None
        return None
    if CLASSES.index(now.level) < CLASSES.index(memory.level):
        since_s = memory.better_since_s = now_s if memory.better_since_s is None else memory.better_since_s
        if now_s - since_s < BETTER_AFTER_S:
            return None
    memory.level, memory.key, memory.why, memory.better_since_s = now.level, now.key, now.why, None
    return now


def _signs(memory: DeviceMemory, reading: DeviceReading, now_s: float) -> list[Judged]:
    values = reading.values
    found: list[Judged] = []
    if reading.error:
        found.append(Judged("failed", f"NVML: {reading.error}", f"error {reading.error}"))
    found += _xids(reading)
    if values.get("remap_failed"):
        found.append(Judged("failed", "a bad memory row could not be remapped", "remap-failed"))
    if values.get("remap_pending"):
        found.append(Judged("failing", "a bad memory row is remapped at the next reset", "remap-pending"))
    uncorrected = int(values.get("ecc_uncorrected_errors", 0))
    if uncorrected:
        said = f"{uncorrected} uncorrected ECC errors since the driver was loaded"
        found.append(Judged("failing", said, f"ecc {uncorrected}"))
    found += _rates(memory, values, now_s)
    if throttled := _throttling(memory, reading, now_s):
        found.append(throttled)
    return found


def _xids(reading: DeviceReading) -> list[Judged]:
    codes = xid_codes(reading.states)
    found = []
    for code in dict.fromkeys(codes):
        level: HealthClass = "failed" if code in FATAL_XIDS else "failing" if code in BAD_XIDS else "ok"
        if level != "ok":
            times = codes.count(code)
            often = f", {times} times" if times > 1 else ""
            found.append(
                Judged(level, f"{meaning_of(code).meaning} (Xid {code}{often})", f"xid {code} {times}")
            )
    return found


def xid_codes(states: Iterable[str]) -> list[int]:
    """Of states such as `xid: 79`; what is no such number is left out."""
    said = [state.removeprefix("xid: ") for state in states if state.startswith("xid: ")]
    return [int(code) for code in said if code.isdecimal() and len(code) < 6]


def _rates(memory: DeviceMemory, values: dict[str, float], now_s: float) -> list[Judged]:
    names = ("ecc_corrected_errors", "pcie_replays", "nvlink_errors")
    counts = {name: values[name] for name in names if name in values}
    memory.counts = [one for one in memory.counts if now_s - one[0] <= _WINDOW_S]
    if not memory.counts or now_s - memory.counts[-1][0] >= _WINDOW_S / _MOST_KEPT:
        memory.counts.append((now_s, counts))
    found = []
    for name, most, over_s, says in (
        ("ecc_corrected_errors", CORRECTED_PER_HOUR, 3600.0, "corrected ECC errors within an hour"),
        ("pcie_replays", REPLAYS_PER_MINUTE, 60.0, "PCIe replays within a minute"),
        ("nvlink_errors", LINK_ERRORS_PER_MINUTE, 60.0, "NVLink errors within a minute"),
    ):
        seen = [at[name] for when, at in memory.counts if name in at and now_s - when <= over_s]
        grown = counts[name] - min(seen) if name in counts and seen else 0.0
        if grown > most:
            found.append(Judged("degraded", f"{grown:.0f} {says}", name))
    return found


def _throttling(memory: DeviceMemory, reading: DeviceReading, now_s: float) -> Judged | None:
    causes = [s.removeprefix("throttle: ") for s in reading.states if s.startswith(THROTTLING)]
    if not causes:
        memory.throttling_since_s = None
        return None
    if memory.throttling_since_s is None:
        memory.throttling_since_s = now_s
    if now_s - memory.throttling_since_s < LASTING_S:
        return None
    said = f"throttles, {', '.join(causes)}"
    celsius = reading.values.get("temperature_celsius")
    if celsius is not None:
        said += f", {celsius:.0f} °C"
    return Judged("degraded", said, "throttles")
