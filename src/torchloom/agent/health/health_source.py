"""What a source of health is: one class in one file, found in the table below or by its entry point.

A source measures and reports; it does not judge. Its readings become a class of health in
core/devices/health_class.py. A source that may hang (a driver, a network file system) is `isolated`: it runs
in a child process that is killed when it does not answer in time. Other packages add sources by an entry
point in the group `torchloom.health_sources` that names a class with this protocol.
"""

from __future__ import annotations

import math
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from torchloom.model.devices import DeviceReading, HealthReport

GROUP = "torchloom.health_sources"


class SourceLook(Struct, frozen=True, kw_only=True):
    """What one look at a source gave."""

    readings: tuple[DeviceReading, ...] = ()
    reports: tuple[HealthReport, ...] = ()
    """Classes that the source was told, rather than measured."""
    complete: bool = False
    """The source lists every GPU of this host: one that is missing has disappeared."""


class HealthSource(Protocol):
    name: str
    every_s: float
    deadline_s: float
    """A look that takes longer counts as hung."""
    isolated: bool

    def __init__(self, node: str, home: Path) -> None: ...

    def why_not(self) -> str:
        """Why this source has nothing to say on this host; empty if it has. Must not hang."""
        ...

    def look(self) -> SourceLook: ...

    def close(self) -> None: ...


BUILT_IN = {
    "nvml": "torchloom.agent.health.nvml:NvmlSource",
    "scrape": "torchloom.agent.health.dcgm_scrape:ScrapeSource",
    "file": "torchloom.agent.health.file_drop:FileDrop",
    "host": "torchloom.agent.health.host_load:HostLoad",
    "slurm": "torchloom.agent.health.slurm:SlurmSource",
}


MOST_READINGS = 1024
_MOST_VALUES, _MOST_STATES, _MOST_TEXT, _MOST_NAME = 128, 512, 500, 64


def checked_look(look: object) -> SourceLook:
    """What a source answered, with the right types and bounded: it leaves in the node's heartbeat, which a
    wrong one would stop. Raises TypeError or ValueError."""
    if not isinstance(look, SourceLook):
        raise TypeError(f"look() answered {type(look).__name__} and no SourceLook")
    short = SourceLook(
        readings=tuple(look.readings[:MOST_READINGS]),
        reports=tuple(look.reports[:MOST_READINGS]),
        complete=look.complete and len(look.readings) <= MOST_READINGS,
    )
    found = msgspec.convert(msgspec.to_builtins(short), SourceLook)
    return SourceLook(
        readings=tuple(_bounded(one) for one in found.readings),
        reports=tuple(
            replace(
                one, device=one.device[:_MOST_TEXT], why=one.why[:_MOST_TEXT], source=one.source[:_MOST_NAME]
            )
            for one in found.reports
        ),
        complete=found.complete,
    )


def _bounded(reading: DeviceReading) -> DeviceReading:
    values = [(name[:_MOST_NAME], value) for name, value in reading.values.items() if math.isfinite(value)]
    return replace(
        reading,
        device=reading.device[:_MOST_TEXT],
        source=reading.source[:_MOST_NAME],
        name=reading.name[:_MOST_TEXT],
        pci=reading.pci[:_MOST_NAME],
        values=dict(values[:_MOST_VALUES]),
        states=tuple(one[:_MOST_TEXT] for one in reading.states[:_MOST_STATES]),
        processes=reading.processes[:MOST_READINGS],
        error=reading.error[:_MOST_TEXT],
    )


def source_class(name: str) -> type[HealthSource]:
    """The class of a source, by its name. Raises LookupError, ImportError or AttributeError."""
    where = BUILT_IN.get(name)
    if where is None:
        (found,) = entry_points(group=GROUP, name=name)
        where = found.value
    module, _, attribute = where.partition(":")
    found_class: type[HealthSource] = getattr(import_module(module), attribute)
    return found_class


def source_names() -> list[str]:
    return [*BUILT_IN, *(one.name for one in entry_points(group=GROUP) if one.name not in BUILT_IN)]
