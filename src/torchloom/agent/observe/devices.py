"""Devices of this host, and which of them a worker uses.

GPUs are found by agent/health/known_gpus.py; on a host without GPUs its NUMA nodes stand in, with their cores
(sockets.py). Which GPU a worker means under CUDA_VISIBLE_DEVICES is a pure function. Health and utilisation
are not looked at here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchloom.errors import UsageError
from torchloom.model.worker import DeviceUse

_MIG = "MIG-"
_INDEX = re.compile("[0-9]{1,9}")


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
    sockets: tuple[tuple[int, ...], ...] = ()
    """The cores by NUMA node; empty: all are one device."""

    def all(self) -> tuple[DeviceUse, ...]:
        if self.gpus:
            return tuple(gpu_use(gpu) for gpu in self.gpus)
        return self._core_uses(self.cores)

    def _core_uses(self, cores: Iterable[int]) -> tuple[DeviceUse, ...]:
        """These cores as devices: one for each NUMA node that they are of."""
        wanted = set(cores)
        shares = [wanted & set(socket) for socket in self.sockets]
        if not wanted or len(wanted) != sum(map(len, shares)):
            return (core_use(self.node, wanted),)  # some are of no node that is known
        return tuple(core_use(self.node, share) for share in shares if share)

    def expected(
        self, local_rank: int, env: Mapping[str, str], cores: Sequence[int] | None
    ) -> tuple[DeviceUse, ...]:
        """What a worker will use if it does as usual: GPU number local_rank, or its cores.

        Where it sees fewer GPUs than there are local ranks, they share: `local_rank % device_count`.
        """
        if self.gpus:
            visible = resolve_visible(env.get("CUDA_VISIBLE_DEVICES"), self.gpus)
            return (gpu_use(visible[local_rank % len(visible)]),) if visible and local_rank >= 0 else ()
        return self._core_uses(cores if cores is not None else self.cores)

    def visible(
        self, own: str | None, chosen: Sequence[str], local_rank: int, barred: Collection[str]
    ) -> str | None:
        """CUDA_VISIBLE_DEVICES of a worker; None: as it is. `own` is what the job's environment says of it,
        `chosen` are the devices chosen for the ranks on this node, in their order.

        The job's own list is kept, without devices that are out of use. Raises UsageError if nothing is left.
        """
        if not self.gpus:
            return None
        if own is not None:
            seen = _named(own, self.gpus)
            usable = [gpu.uuid for gpu in seen if gpu.uuid not in barred]
            if len(usable) == len(seen):
                return None
            if not usable:
                raise UsageError(
                    f"CUDA_VISIBLE_DEVICES={own} of the job names only devices that are out of use on "
                    f"{self.node}; return one (`loom device return`) or leave the variable out"
                )
            return ",".join(usable)
        listed = [device for device in dict.fromkeys(chosen) if find_uuid(device, self.gpus)]
        if not listed:
            return None
        if any(device.startswith(_MIG) for device in listed):
            return listed[local_rank % len(listed)]  # CUDA lets a process see one MIG instance only
        return ",".join(listed)

    def told(self, device: object) -> tuple[DeviceUse, ...]:
        """What a worker says it uses (its DEVICE blob)."""
        if not isinstance(device, dict):
            return ()
        if device.get("kind") == "cuda":
            return self._told_gpu(device)
        cores = device.get("cores")
        if isinstance(cores, list) and cores and all(isinstance(c, int) for c in cores):
            return self._core_uses(cores)
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

    def cores_of(self, device: str) -> tuple[int, ...]:
        """The cores of a device that stands for some of this host's."""
        for socket in self.sockets or (self.cores,):
            if core_use(self.node, socket).device == device:
                return socket
        return self.cores

    def free_cores(self, barred: Collection[str]) -> tuple[int, ...]:
        """The cores without those of devices that are out of use."""
        closed = {core for use in self.all() if use.device in barred for core in self.cores_of(use.device)}
        return tuple(core for core in self.cores if core not in closed) if not self.gpus else self.cores

    def pci_of(self, uses: Iterable[DeviceUse]) -> tuple[str, ...]:
        """Where these devices are on the bus, as far as that is known."""
        used = {use.device for use in uses}
        return tuple(gpu.pci for gpu in self.gpus if gpu.uuid in used and gpu.pci)

    def share(self, local_rank: int, local_world_size: int, barred: Collection[str] = ()) -> list[int]:
        """The cores of one worker when each gets its own; with fewer cores than workers they are shared."""
        cores = self.free_cores(barred) or self.cores
        count, workers = len(cores), max(1, local_world_size)
        if count < workers:
            return [cores[local_rank % count]]
        return list(cores[local_rank * count // workers : (local_rank + 1) * count // workers])

    def pinned(
        self, local_rank: int, local_world_size: int, barred: Collection[str], *, each: bool
    ) -> list[int] | None:
        """The cores that a worker is kept to; None: it may use all. `each`: every worker gets its own."""
        if each:
            return self.share(local_rank, local_world_size, barred)
        free = self.free_cores(barred)
        return list(free) if free and len(free) < len(self.cores) else None


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
    if wanted in ("", _MIG.lower()):
        return None
    known = [(gpu.uuid.removeprefix("GPU-").lower(), gpu) for gpu in gpus]
    found = [gpu for uuid, gpu in known if uuid == wanted] or [
        g for uuid, g in known if uuid.startswith(wanted)
    ]
    return found[0] if len(found) == 1 else None


def resolve_visible(value: object, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs a process sees, in its own numbering.

    As CUDA does: unset means all; an entry that is invalid or repeated hides itself and all after it
    (a repeated one hides everything); indexes, UUID prefixes and names of MIG instances are accepted. Of
    MIG instances a process sees the first that it may see, and then no whole GPU.
    """
    seen = _named(value, gpus)
    return next(([gpu] for gpu in seen if gpu.uuid.startswith(_MIG)), seen)


def _named(value: object, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs and instances that CUDA_VISIBLE_DEVICES names, in its order."""
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
    if _INDEX.fullmatch(entry):
        return _by_index(int(entry), gpus)
    return find_uuid(entry, gpus) if entry.startswith(("GPU-", _MIG)) else None


def _by_index(index: int, gpus: Sequence[Gpu]) -> Gpu | None:
    """An index counts GPUs. The instances of a divided one have its address; the first of them is meant."""
    whole = [gpu for at, gpu in enumerate(gpus) if at == 0 or not gpu.pci or gpu.pci != gpus[at - 1].pci]
    return whole[index] if index < len(whole) else None
