"""What is known of a device over days: counted errors, results of tests, and its risk. Records only."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class WearCounts(Struct, frozen=True, array_like=True):
    """What was counted on a device while it was watched."""

    watched_s: float = 0.0
    ecc_corrected: float = 0.0
    hard_errors: float = 0.0
    """Uncorrected ECC errors, remapped rows, and Xid errors that point at the hardware."""
    throttled_s: float = 0.0
    link_errors: float = 0.0
    """PCIe replays and NVLink errors."""
    blamed: float = 0.0
    """Crashes of workers that were classified as faults of this device."""


class DeviceWear(Struct, frozen=True):
    """The counts of one device since the last report."""

    device: str
    counts: WearCounts


class WearSlot(Struct, frozen=True, array_like=True):
    """What was counted within one span of six hours."""

    number: int
    """Spans since 1970."""
    watched_s: float = 0.0
    ecc_corrected: float = 0.0
    link_errors: float = 0.0


class WearHistory(Struct, frozen=True, kw_only=True):
    """The counts of a device, as two sums that fade: one with a half-life of six hours, one of a week; and
    span by span for the last two days, which tells errors that last from a burst."""

    at_ns: int
    """When the sums were brought up to date."""
    watched_s: float = 0.0
    """In all."""
    recent: WearCounts = WearCounts()
    week: WearCounts = WearCounts()
    slots: tuple[WearSlot, ...] = ()
    """The newest ones, oldest first; spans in which nothing was reported are missing."""


class TestMetric(Struct, frozen=True, kw_only=True):
    """One measurement of a test, beside those of the other devices."""

    __test__ = False

    name: str
    value: float
    median: float | None = None
    """Of all devices that were compared; None: too few to compare."""
    worse: float | None = None
    """Share of the other devices whose value is worse."""
    shortfall: float = 0.0
    """How much worse than the median, as a share of it; 0 within the usual spread."""


class TestResult(Struct, frozen=True, kw_only=True):
    """The result of one test of a device."""

    __test__ = False

    source: str
    """`superbench`, or `loom` for the product's own test."""
    passed: bool
    why: str = ""
    """Why it did not pass."""
    metrics: tuple[TestMetric, ...] = ()
    """The worst ones first, not all."""
    measured: int = 0
    """How many metrics there were."""
    at_ns: int = 0
    """When the core learned it, by the stream's clock."""

    @property
    def shortfall(self) -> float:
        return max((one.shortfall for one in self.metrics), default=0.0)


class DeviceResult(Struct, frozen=True):
    """A test result and the device it is about."""

    device: str
    result: TestResult


class Driver(Struct, frozen=True):
    """One reason why a device's risk is what it is."""

    feature: str
    value: float
    weight: float
    """What it adds to the log-odds."""
    says: str
    """In words, with its numbers: `214 corrected ECC errors a day`."""


class Risk(Struct, frozen=True, kw_only=True):
    """How likely a device is to fail within a day."""

    probability: float | None
    """None: not enough data."""
    why: str
    drivers: tuple[Driver, ...] = ()
    """What raised it, the strongest first."""


Consequence = Literal["nothing", "return", "drain"]
"""`return`: the device is returned to use if it passes. `drain`: it is taken out of use if it fails."""


class Testing(Struct, frozen=True, kw_only=True):
    """A test of a device that was requested and has not answered yet."""

    __test__ = False

    effect: str
    by: str
    why: str = ""
    at_ns: int = 0
    then: Consequence = "nothing"
