"""How likely a device is to fail within the next day: a few features, a weight for each, one logistic curve.

    log-odds = BIAS + sum(weight * feature)        probability = 1 / (1 + exp(-log-odds))

Every feature is 0 for a device without signs, and no feature lowers the risk. The weights were fitted to
simulated fleets (chaos/device_lives.py) by `python bench/prediction.py`, which also says how good they are on
fleets that they were not fitted to. A real fleet differs: the probability orders devices, and how well it is
calibrated there is not known. Decides nothing.
"""

from __future__ import annotations

import math

from torchloom.core.devices.wear import DAY_S, SLOT_S, at, slot_of
from torchloom.model.device_wear import Driver, Risk, TestResult, WearHistory

ENOUGH_S = DAY_S
"""A device is not judged before it was watched for so long."""
TEST_COUNTS_S = 30 * DAY_S
"""An older test says nothing."""
BIAS = -6.34
WEIGHTS = {
    "lasting ecc": 3.11,
    "rising": 0.97,
    "hard": 0.83,
    "throttle": 4.83,
    "lasting links": 4.29,
    "links": 0.92,
    "blamed": 1.36,
    "slow": 1.82,
}
LEAST_WATCHED_S = 3600.0
_RECENT_SLOTS = 4
_NAMED = 3


def risk(wear: WearHistory | None, tests: list[TestResult], now_ns: int) -> Risk:
    """The risk of one device, with what drives it."""
    watched_s = wear.watched_s if wear is not None else 0.0
    if wear is None or watched_s < ENOUGH_S:
        return Risk(probability=None, why=f"not enough data: watched for {watched_s / 3600:.1f} of 24 h")
    found = features(wear, tests, now_ns)
    odds = BIAS + sum(WEIGHTS[name] * value for name, value in found.items())
    drivers = sorted(
        (
            Driver(name, value, WEIGHTS[name] * value, _says(name, wear, tests, now_ns))
            for name, value in found.items()
            if value > 0
        ),
        key=lambda one: -one.weight,
    )
    why = ", ".join(one.says for one in drivers[:_NAMED]) or "no signs"
    return Risk(probability=1 / (1 + math.exp(-odds)), why=why, drivers=tuple(drivers))


def features(wear: WearHistory, tests: list[TestResult], now_ns: int) -> dict[str, float]:
    """All features of a device; each is 0 where there is no sign."""
    faded = at(wear, now_ns)
    ecc_day = _a_day(faded.recent.ecc_corrected, faded.recent.watched_s)
    ecc_week = _a_day(faded.week.ecc_corrected, faded.week.watched_s)
    newest = _newest(tests, now_ns)
    return {
        "lasting ecc": lasting(wear, "ecc_corrected", now_ns),
        "rising": min(3.0, max(0.0, math.log2((ecc_day + 1) / (ecc_week + 1)))),
        "hard": min(2.0, faded.week.hard_errors),
        "throttle": min(0.5, _share(faded.recent.throttled_s, faded.recent.watched_s)),
        "lasting links": lasting(wear, "link_errors", now_ns),
        "links": min(2.0, math.log10(1 + _a_day(faded.recent.link_errors, faded.recent.watched_s))),
        "blamed": min(2.0, faded.week.blamed),
        "slow": 0.0 if newest is None else min(1.0, newest.shortfall) if newest.passed else 1.0,
    }


def lasting(wear: WearHistory, counter: str, now_ns: int) -> float:
    """By how many powers of ten errors of the last two spans are above those of a day before, 0 to 1.5. A
    burst is over in the second span, and a device that always has some is not above its past."""
    newest, before = _spans(wear, counter, now_ns)
    if len(newest) < 2:
        return 0.0
    low = math.log10(1 + min(newest)) - math.log10(1 + before)
    return min(1.5, max(0.0, low))


def _spans(wear: WearHistory, counter: str, now_ns: int) -> tuple[list[float], float]:
    """Errors per span of six hours: in the newest two that were watched, and on average a day before."""
    now = slot_of(now_ns)
    enough = [one for one in wear.slots if one.watched_s >= LEAST_WATCHED_S]
    rates = {one.number: getattr(one, counter) * SLOT_S / one.watched_s for one in enough}
    newest = [rates[number] for number in sorted(rates) if now - number < _RECENT_SLOTS][-2:]
    earlier = [rate for number, rate in rates.items() if _RECENT_SLOTS < now - number <= 2 * _RECENT_SLOTS]
    return newest, sum(earlier) / len(earlier) if earlier else 0.0


def _newest(tests: list[TestResult], now_ns: int) -> TestResult | None:
    recent = [one for one in tests if now_ns - one.at_ns <= TEST_COUNTS_S * 1e9]
    return recent[-1] if recent else None


def _a_day(count: float, watched_s: float) -> float:
    """A rate per day. What was watched for less than an hour counts as an hour: two errors are no trend."""
    return count * DAY_S / max(watched_s, 3600.0) if count else 0.0


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, part_s / whole_s) if whole_s > 0 else 0.0


def _says(name: str, wear: WearHistory, tests: list[TestResult], now_ns: int) -> str:
    faded = at(wear, now_ns)
    recent, week = faded.recent, faded.week
    match name:
        case "lasting ecc" | "lasting links":
            ecc = name == "lasting ecc"
            spans, before = _spans(wear, "ecc_corrected" if ecc else "link_errors", now_ns)
            what = "corrected ECC errors" if ecc else "link errors"
            return f"{what} that last: {min(spans):.0f} or more in six hours, {before:.0f} a day before"
        case "rising":
            past = _a_day(week.ecc_corrected, week.watched_s)
            now = _a_day(recent.ecc_corrected, recent.watched_s)
            return f"corrected ECC errors rising from {past:.0f} to {now:.0f} a day"
        case "hard":
            return f"{week.hard_errors:.1f} hard errors within the last weeks"
        case "throttle":
            return f"throttled {100 * _share(recent.throttled_s, recent.watched_s):.0f} % of the time"
        case "links":
            return f"{_a_day(recent.link_errors, recent.watched_s):.0f} link errors a day"
        case "blamed":
            return f"{week.blamed:.1f} crashes blamed on it within the last weeks"
        case _:
            newest = _newest(tests, now_ns)
            assert newest is not None
            if not newest.passed:
                return f"failed a test by {newest.source}" + (f": {newest.why}" if newest.why else "")
            worst = max(newest.metrics, key=lambda one: one.shortfall)
            return f"{worst.name} is {100 * worst.shortfall:.0f} % worse than the fleet's median"
