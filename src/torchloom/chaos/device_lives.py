"""Simulated lives of GPUs: what is counted on them day by day, and when they fail. Seeded.

What is assumed, and it is an assumption, because no public data set has all of this:
* Every device has a background of its own: corrected ECC errors (most none, some dozens a day), link errors.
* Look-alikes that mean nothing: a node that is hot for a day (all its devices throttle), a burst of corrected
  errors, a reseated cable, a single Xid, a test that came out low.
* A device may start to degrade: in its memory (corrected errors grow, then hard errors), its links, its
  cooling (throttling, slow tests), or without any sign. It fails after some days of that, four on average.
* Some devices fail suddenly. Nothing can be learned about these before.
Rates are those of a fleet that is worse than most, so that there is enough to count; `Fleet` changes them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from torchloom.core.devices.hazard import ENOUGH_S, features
from torchloom.core.devices.wear import DAY_S, grown
from torchloom.model.device_wear import TestMetric, TestResult, WearCounts, WearHistory

PERIOD_S = 6 * 3600.0
"""Counts are reported so often."""
KINDS = ("memory", "links", "cooling", "silent")


@dataclass(frozen=True)
class FleetKind:
    """What a simulated fleet is like."""

    devices: int = 800
    days: int = 45
    degrades_a_day: float = 0.004
    """Devices that begin to degrade, per device and day."""
    sudden_a_day: float = 0.0008
    degrading_days: float = 4.0
    kinds: tuple[float, ...] = (0.45, 0.2, 0.2, 0.15)
    """Shares of `KINDS`."""
    noise: float = 1.0
    """How often look-alikes happen."""
    tested_share: float = 0.5
    """Devices with a test result that is not older than a week."""


@dataclass(frozen=True)
class Observed:
    """One device on one day: what the model sees, and whether the device failed within the next day."""

    device: int
    day: float
    features: dict[str, float]
    failed: bool
    cause: str
    """Of the failure, if it failed: one of KINDS, or `sudden`."""
    degrading: bool
    """Whether it had begun to degrade in a way that can be counted. What only the simulation knows."""


@dataclass
class _Life:
    ecc: float
    links: float
    degrades_at: float
    fails_at: float
    kind: str


def observations(kind: FleetKind, seed: int) -> Iterator[Observed]:
    """Every living device once a day, as soon as it was watched for long enough."""
    chance = random.Random(seed)
    hot = {
        (node, day)
        for node in range(-(-kind.devices // 8))
        for day in range(kind.days)
        if chance.random() < 0.01 * kind.noise
    }
    for device in range(kind.devices):
        yield from _one(kind, chance, device, hot)


def _one(
    kind: FleetKind, chance: random.Random, device: int, hot: set[tuple[int, int]]
) -> Iterator[Observed]:
    life = _life(kind, chance)
    wear: WearHistory | None = None
    tests: list[TestResult] = []
    periods = round(DAY_S / PERIOD_S)
    for period in range(kind.days * periods):
        day = period / periods
        if day >= life.fails_at:
            return
        if period % periods == 0 and wear is not None and wear.watched_s >= ENOUGH_S:
            failed = life.fails_at <= day + 1
            cause = life.kind if failed else ""
            degrading = life.kind not in ("silent", "sudden") and day > life.degrades_at
            yield Observed(device, day, features(wear, tests, _ns(day)), failed, cause, degrading)
        if period % (7 * periods) == 0 and chance.random() < kind.tested_share:
            tests = [_test(kind, chance, life, day)]
        wear = grown(wear, _counts(kind, chance, life, day, (device // 8, int(day)) in hot), _ns(day))


def _life(kind: FleetKind, chance: random.Random) -> _Life:
    begins = chance.expovariate(kind.degrades_a_day)
    breaks = begins + chance.expovariate(1 / kind.degrading_days)
    sudden = chance.expovariate(kind.sudden_a_day)
    ecc = chance.lognormvariate(1.0, 1.5) if chance.random() < 0.3 else 0.0
    links = chance.lognormvariate(0.0, 1.0) if chance.random() < 0.3 else 0.0
    (what,) = chance.choices(KINDS, kind.kinds)
    if sudden < breaks:
        return _Life(ecc, links, begins, sudden, "sudden" if sudden < begins else what)
    return _Life(ecc, links, begins, breaks, what)


def _sickness(life: _Life, day: float) -> float:
    """0 before it degrades, 1 when it fails."""
    if day < life.degrades_at:
        return 0.0
    return min(1.0, (day - life.degrades_at) / max(0.25, life.fails_at - life.degrades_at))


def _counts(kind: FleetKind, chance: random.Random, life: _Life, day: float, hot: bool) -> WearCounts:
    part, sick = PERIOD_S / DAY_S, _sickness(life, day)
    ill = life.kind if day >= life.degrades_at else ""
    ecc, links, hard, throttled = life.ecc, life.links, 0.0, 0.6 if hot else 0.0
    if chance.random() < 0.01 * kind.noise * part:
        ecc += chance.lognormvariate(5.0, 1.0)
    if chance.random() < 0.01 * kind.noise * part:
        links += chance.lognormvariate(5.0, 1.0)
    if chance.random() < 0.004 * kind.noise * part:
        hard += 1.0
    if ill == "memory":
        ecc += 10 ** (3 * sick) * chance.lognormvariate(0.0, 0.7)
        hard += _poisson(chance, 2.0 * sick**2 * part)
    elif ill == "links":
        links += 10 ** (3 * sick) * chance.lognormvariate(0.0, 0.7)
    elif ill == "cooling":
        throttled = max(throttled, sick * chance.uniform(0.3, 1.0))
    blamed = _poisson(chance, 0.8 * sick**2 * part) if ill not in ("", "silent") else 0.0
    return WearCounts(
        watched_s=PERIOD_S,
        ecc_corrected=float(_poisson(chance, ecc * part)),
        hard_errors=float(hard),
        throttled_s=min(1.0, throttled) * PERIOD_S,
        link_errors=float(_poisson(chance, links * part)),
        blamed=float(blamed),
    )


def _test(kind: FleetKind, chance: random.Random, life: _Life, day: float) -> TestResult:
    """A test shows what is wrong with cooling and links, hardly with memory, and is wrong itself at times."""
    sick, ill = _sickness(life, day), life.kind if day >= life.degrades_at else ""
    shown = {"cooling": 0.4, "links": 0.4, "memory": 0.1}.get(ill, 0.0) * sick
    if chance.random() < 0.01 * kind.noise:
        shown = max(shown, chance.uniform(0.05, 0.3))
    metric = TestMetric(name="simulated", value=1.0 - shown, median=1.0, shortfall=shown)
    return TestResult(source="simulated", passed=True, metrics=(metric,), measured=1, at_ns=_ns(day))


def _poisson(chance: random.Random, mean: float) -> int:
    if mean > 50:
        return max(0, round(chance.gauss(mean, mean**0.5)))
    limit, product, count = 2.718281828459045 ** (-mean), chance.random(), 0
    while product > limit:
        product *= chance.random()
        count += 1
    return count


def _ns(day: float) -> int:
    return int((1_700_000_000 + day * DAY_S) * 1e9)
