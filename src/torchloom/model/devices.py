"""Devices as the fleet knows them: where they are, how they are, who took them out of use. Records only.

Which worker uses a device is kept once, at the worker (`Worker.devices`); the other direction is looked up
(core/devices/users.py), so the two cannot disagree.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct, field

from torchloom.model.device_wear import Testing, TestResult, WearHistory

HealthClass = Literal["ok", "degraded", "failing", "failed"]
"""`degraded`: works, but slower than it should. `failing`: works, and shows signs that often precede a
failure. `failed`: nothing can run on it."""
CLASSES: tuple[HealthClass, ...] = ("ok", "degraded", "failing", "failed")
"""From the best to the worst."""

DeviceAction = Literal["ignore", "report", "drain", "fail"]
"""`report`: record it. `drain`: save the jobs there and continue without the device. `fail`: replace the
workers on it at once."""
RiskAction = Literal["ignore", "report", "test", "drain"]
"""What is done about a device that is likely to fail soon. `test`: test it as soon as no worker uses it, and
take it out of use if it fails. `drain`: save the jobs there, continue without it, and test it then."""


SOURCE_NAME = re.compile(r"[\w.:-]{1,64}")
"""How a source of health may be named, whichever way its reports come."""


class HealthReport(Struct, frozen=True, kw_only=True):
    """What one source concludes about one device."""

    device: str
    level: HealthClass
    why: str = ""
    """One clause, for example `throttles, thermal, 87 °C`; empty if the class is `ok`."""
    source: str = ""
    at_ns: int = 0
    """When the core learned it, by the stream's clock."""


class DeviceReading(Struct, frozen=True, kw_only=True):
    """What a source measured of one device. Telemetry: lossy, and never in the stream."""

    device: str
    source: str
    kind: Literal["gpu", "cpu", "host"] = "gpu"
    name: str = ""
    index: int | None = None
    pci: str = ""
    """`0000:3b:00`, as the kernel's log names it."""
    values: dict[str, float] = {}
    """In base units, by name: `temperature_celsius`, `power_watts`, `memory_used_bytes`, …"""
    states: tuple[str, ...] = ()
    """What is not a number: `throttle: thermal`, `xid: 79`, …"""
    processes: tuple[int, ...] = ()
    """Pids of the processes that use it."""
    error: str = ""
    """Why it could not be read: `GPU is lost`."""


DeviceMark = Literal["fail", "drain", "return"]


class OutOfUse(Struct, frozen=True, kw_only=True):
    """Why a device gets no worker."""

    how: Literal["failed", "drained"]
    by: str
    """A person, or `policy`."""
    why: str = ""
    at_ns: int = 0

    def describe(self) -> str:
        return f"{self.how}, by {self.by}" + (f": {self.why}" if self.why else "")


class DeviceNote(Struct, frozen=True, array_like=True):
    """One line of a device's history."""

    at_ns: int
    what: str
    by: str = ""
    why: str = ""


class Device(Struct, kw_only=True):
    """One device of a node; kept by core.devices."""

    id: str
    kind: Literal["gpu", "cpu"]
    name: str
    node: str
    present: bool = True
    """Its agent lists it."""
    out: OutOfUse | None = None
    health: dict[str, HealthReport] = field(default_factory=dict)
    """What each source said last, if it was not `ok`."""
    history: list[DeviceNote] = field(default_factory=list)
    """The newest lines, oldest first."""
    wear: WearHistory | None = None
    """What was counted on it over days; None: nothing yet."""
    tests: list[TestResult] = field(default_factory=list)
    """The newest results, oldest first."""
    at_risk: bool = False
    """It was at or above the policy's risk when that was computed last; kept by core.devices.at_risk."""
    wants_test: str = ""
    """Why it is to be tested as soon as no worker uses it; empty: it is not."""
    testing: Testing | None = None
    """The test that runs on it now. It gets no worker meanwhile."""

    @property
    def barred(self) -> bool:
        """Whether it gets no worker."""
        return self.out is not None or self.testing is not None


class DevicePolicy(Struct, frozen=True, kw_only=True):
    """What the fleet does when a device's health changes."""

    rules: dict[str, DeviceAction] = {}
    """Class of health → action; what is not named follows the defaults of core/devices/health_policy.py."""
    dry_run: bool = False
    """Only record what would be done."""
    acts_per_hour: int = 8
    """Drains and failures by policy in the whole fleet; beyond that the health is only reported."""
    at_risk: RiskAction = "report"
    """What is done about a device whose risk to fail within a day reaches `risk`."""
    risk: float = 0.1
    return_tested: bool = False
    """A device that the policy drained because of its risk is returned to use if it passes its test."""


class DeviceAct(Struct, frozen=True, array_like=True):
    """Something that the policy did to a device."""

    device: str
    action: DeviceAction | RiskAction
    at_ns: int
