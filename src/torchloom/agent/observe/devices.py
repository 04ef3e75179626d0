"""Devices of this host, and which of them a worker uses.

GPUs come from NVML when it is there; on a host without GPUs a set of CPU cores stands in. Which GPU a worker
means under CUDA_VISIBLE_DEVICES is a pure function. Health and utilisation are not looked at here.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchloom.core.device_faults.xids import short_pci
from torchloom.model.worker import DeviceUse

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gpu:
    """A GPU in NVML's order, which is that of the PCI bus and, among equal GPUs, also CUDA's."""

    uuid: str
    name: str
    pci: str = ""
    """`0000:3b:00`, as the kernel's log names it; empty when NVML does not say."""


@dataclass(frozen=True)
class Devices:
    """What this host has."""

    node: str
    gpus: tuple[Gpu, ...]
    cores: tuple[int, ...]

    def all(self) -> tuple[DeviceUse, ...]:
        if self.gpus:
            return tuple(gpu_use(gpu) for gpu in self.gpus)
        return (core_use(self.node, self.cores),)

    def expected(
        self, local_rank: int, env: Mapping[str, str], cores: Sequence[int] | None
    ) -> tuple[DeviceUse, ...]:
        """What a worker will use if it does as usual: GPU number local_rank, or its cores."""
        if self.gpus:
            visible = resolve_visible(env.get("CUDA_VISIBLE_DEVICES"), self.gpus)
            return (gpu_use(visible[local_rank]),) if 0 <= local_rank < len(visible) else ()
        return (core_use(self.node, cores if cores is not None else self.cores),)

    def told(self, device: object) -> tuple[DeviceUse, ...]:
        """What a worker says it uses (its DEVICE blob)."""
        if not isinstance(device, dict):
            return ()
        if device.get("kind") == "cuda":
            return self._told_gpu(device)
        cores = device.get("cores")
        if isinstance(cores, list) and cores and all(isinstance(c, int) for c in cores):
            return (core_use(self.node, cores),)
        return ()

    def _told_gpu(self, device: dict[str, Any]) -> tuple[DeviceUse, ...]:
        uuid = device.get("uuid")
        if isinstance(uuid, str) and uuid:
            match = find_uuid(uuid, self.gpus)
            return (gpu_use(match) if match else DeviceUse(uuid, "gpu", str(device.get("name", ""))),)
        visible = resolve_visible(device.get("visible"), self.gpus)
        index = device.get("index")
        if isinstance(index, int) and 0 <= index < len(visible):
            return (gpu_use(visible[index]),)
        return ()

    def pci_of(self, uses: Iterable[DeviceUse]) -> tuple[str, ...]:
        """Where these devices are on the bus, as far as that is known."""
        used = {use.device for use in uses}
        return tuple(gpu.pci for gpu in self.gpus if gpu.uuid in used and gpu.pci)

    def share(self, local_rank: int, local_world_size: int) -> list[int]:
        """The cores of one worker when each gets its own; with fewer cores than workers they are shared."""
        count, workers = len(self.cores), max(1, local_world_size)
        if count < workers:
            return [self.cores[local_rank % count]]
        return list(self.cores[local_rank * count // workers : (local_rank + 1) * count // workers])


def look(node: str) -> Devices:
    """See what this host has now."""
    return Devices(node, tuple(gpus_or_why()[0]), tuple(sorted(os.sched_getaffinity(0))))


def gpu_use(gpu: Gpu) -> DeviceUse:
    return DeviceUse(gpu.uuid, "gpu", gpu.name)


def core_use(node: str, cores: Iterable[int]) -> DeviceUse:
    text = ranges(cores)
    return DeviceUse(f"cpu-{node}-{text}", "cpu", f"CPU core{'s' if not text.isdigit() else ''} {text}")


def ranges(numbers: Iterable[int]) -> str:
    """0,1,2,5 → `0-2,5`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def find_uuid(text: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU whose UUID begins like this: CUDA accepts any prefix that is unique, with or without `GPU-`."""
    wanted = text.removeprefix("GPU-").lower()
    found = [gpu for gpu in gpus if gpu.uuid.removeprefix("GPU-").lower().startswith(wanted)]
    return found[0] if wanted and len(found) == 1 else None


def resolve_visible(value: object, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs a process sees, in its own numbering.

    As CUDA does: unset means all; an entry that is invalid or repeated hides itself and all after it
    (a repeated one hides everything); indexes and UUID prefixes are accepted, MIG names are not resolved.
    """
    if value is None:
        return list(gpus)
    if not isinstance(value, str):
        return []
    seen: list[Gpu] = []
    for entry in value.split(","):
        gpu = _visible_entry(entry.strip(), gpus)
        if gpu is None:
            break
        if gpu in seen:
            return []
        seen.append(gpu)
    return seen


def _visible_entry(entry: str, gpus: Sequence[Gpu]) -> Gpu | None:
    if re.fullmatch(r"\d+", entry):
        index = int(entry)
        return gpus[index] if index < len(gpus) else None
    return find_uuid(entry, gpus) if entry.startswith("GPU-") else None


def gpus_or_why() -> tuple[list[Gpu], str]:
    """The GPUs that NVML lists, and if there are none, why."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return [], "nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [], str(error)  # no driver: the usual case on a host without GPUs
    try:
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid, name = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
            found.append(Gpu(uuid, name, _pci(nvml, handle)))
        return found, "" if found else "it lists no GPU"
    except nvml.NVMLError as error:
        log.warning("NVML does not list the GPUs of this host: %s", error)
        return [], str(error)
    finally:
        nvml.nvmlShutdown()


def _pci(nvml: Any, handle: Any) -> str:
    try:
        return short_pci(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    except (nvml.NVMLError, AttributeError):
        return ""


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
