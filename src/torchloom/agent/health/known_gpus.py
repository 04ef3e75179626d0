"""The GPUs of this host. NVML is asked in a child process, so that a driver that hangs does not hang us.

What was found last is kept in a file: while NVML does not answer, or cannot list all GPUs because its driver
is being replaced, the host still has these GPUs, and workers must not be placed as if it had none.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from torchloom.agent.health.isolation import look_once
from torchloom.agent.health.nvml import NvmlSource
from torchloom.agent.health.source_process import ChildLine
from torchloom.agent.observe.devices import Devices, Gpu
from torchloom.agent.observe.sockets import numa_cores
from torchloom.model.devices import DeviceReading

log = logging.getLogger(__name__)

FILE = "gpus.json"
ANSWER_WITHIN_S = 30.0


def look(node: str, home: Path | None = None, within_s: float = ANSWER_WITHIN_S) -> Devices:
    """See what this host has now."""
    line = _ask(node, home, within_s)
    found = [gpu_of(reading) for reading in line.look.readings] if line.look is not None else []
    if home is not None and line.look is not None and line.look.complete:
        _keep(home / FILE, found)
    elif home is not None and (kept := _kept(home / FILE)) and not line.absent:
        why = line.why or "it cannot open all of them"
        log.warning("NVML: %s; this host counts as having the %d GPUs it had before", why, len(kept))
        found += [one for one in kept if one.uuid not in {gpu.uuid for gpu in found}]
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return Devices(node, tuple(found), cores, numa_cores(cores))


def readings_or_why() -> tuple[list[DeviceReading], str]:
    """The GPUs that NVML lists, each as it is now, and if there are none, why."""
    line = _ask("", None, ANSWER_WITHIN_S)
    if line.look is None:
        return [], line.why
    found = list(line.look.readings)
    return found, "" if found else "it lists no GPU"


def _ask(node: str, home: Path | None, within_s: float) -> ChildLine:
    why = NvmlSource(node, home or Path()).why_not()
    return ChildLine(why=why, absent=True) if why else look_once("nvml", node, home or Path(), within_s)


def gpu_of(reading: DeviceReading) -> Gpu:
    return Gpu(reading.device, reading.name, reading.pci)


def _keep(path: Path, gpus: list[Gpu]) -> None:
    try:
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(gpus))
        part.replace(path)
    except OSError as error:
        log.info("the list of GPUs cannot be kept: %s", error)


def _kept(path: Path) -> list[Gpu]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Gpu])
    except (OSError, msgspec.DecodeError):
        return []
