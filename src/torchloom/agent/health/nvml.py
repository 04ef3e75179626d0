"""NVIDIA GPUs and MIG instances, through NVML. Runs in a child process, because a driver may hang.

A value that a GPU does not support, or that this user may not read, is left out; it never costs the others.
Xid errors come from NVML's events; they are kept until the child ends.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchloom.agent.health.health_source import SourceLook
from torchloom.core.device_faults.xids import short_pci
from torchloom.model.devices import DeviceReading

LIBRARY = "libnvidia-ml.so.1"
_THROTTLES = {
    0x04: "power cap",
    0x08: "hardware",
    0x20: "thermal",
    0x40: "thermal, by hardware",
    0x80: "power brake",
}
_MOST_EVENTS = 256
_AFTER_EVENT_S = 0.1
_LINKS = 18
_MOST_PROCESSES = 64


class NvmlSource:
    name, every_s, deadline_s, isolated = "nvml", 2.0, 10.0, True

    def __init__(self, node: str, home: Path) -> None:
        self._nvml: Any = None
        self._events: Any = None
        self._xids: dict[str, list[int]] = {}

    def why_not(self) -> str:
        try:
            ctypes.CDLL(LIBRARY)
        except OSError:
            return f"there is no {LIBRARY}"
        return ""

    def look(self) -> SourceLook:
        nvml = self._begin()
        readings: list[DeviceReading] = []
        doubtful = False
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                readings += self._gpu(nvml, handle, index)
            except nvml.NVMLError as error:
                # It has no id here: the agent sees that it is missing. Anything but "lost" and "not found"
                # says nothing about it: a permission, or a driver that is being replaced.
                doubtful |= error.value not in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_NOT_FOUND)
        self._take_events(nvml)
        told = [_with_xids(reading, self._xids.get(reading.device, [])) for reading in readings]
        # All GPUs do not disappear at once; a driver that is being replaced lists none.
        return SourceLook(readings=tuple(told), complete=bool(told) and not doubtful)

    def _begin(self) -> Any:
        if self._nvml is None:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._register(pynvml)
        return self._nvml

    def _register(self, nvml: Any) -> None:
        """Xid errors as events; without permission there are none."""
        try:
            self._events = nvml.nvmlEventSetCreate()
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError:
            self._events = None

    def _take_events(self, nvml: Any) -> None:
        for _ in range(_MOST_EVENTS if self._events is not None else 0):
            if not self._take_event(nvml, 0):
                return

    def _take_event(self, nvml: Any, within_ms: int) -> bool:
        try:
            event = nvml.nvmlEventSetWait(self._events, within_ms)
            uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
        except nvml.NVMLError:
            return False  # none is left
        self._xids.setdefault(uuid, []).append(int(event.eventData))
        del self._xids[uuid][:-_MOST_EVENTS]
        return True

    def wait(self, seconds: float) -> None:
        """Until the next look is due. An Xid error ends it: its crash is then reported with it."""
        until = time.monotonic() + seconds
        if self._events is not None and self._take_event(self._nvml, int(1000 * seconds)):
            until = min(until, time.monotonic() + _AFTER_EVENT_S)  # many at once are one look
        time.sleep(max(0.0, until - time.monotonic()))

    def _gpu(self, nvml: Any, handle: Any, index: int) -> list[DeviceReading]:
        whole = _reading(nvml, handle, index)
        parts = [_reading(nvml, part, index) for part in _instances(nvml, handle)]
        # Workers run on the instances; what ails the GPU ails all of them.
        return [_of_part(part, whole) for part in parts] or [whole]

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()


def _instances(nvml: Any, handle: Any) -> list[Any]:
    """The MIG instances of a GPU, if it is divided."""
    try:
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return []
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return []
    found = []
    for index in range(count):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nvml.NVMLError:
            continue  # there may be gaps
    return found


def _reading(nvml: Any, handle: Any, index: int) -> DeviceReading:
    values: dict[str, float] = {}
    states: list[str] = []
    lost = ""

    def ask(read: Callable[[], Any]) -> Any:
        nonlocal lost
        try:
            return read()
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
                lost = _text(str(error))
            return None

    def take(name: str, read: Callable[[], Any], factor: float = 1.0) -> None:
        found = ask(read)
        if found is not None:
            values[name] = float(found) * factor

    uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    name = _text(ask(lambda: nvml.nvmlDeviceGetName(handle)) or "")
    pci = ask(lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    if memory is not None:
        values |= {"memory_bytes": float(memory.total), "memory_used_bytes": float(memory.used)}
    busy = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    if busy is not None:
        values["utilization_ratio"] = busy.gpu / 100
    take("temperature_celsius", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    take("power_watts", lambda: nvml.nvmlDeviceGetPowerUsage(handle), 1e-3)
    take("clock_hertz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM), 1e6)
    for word, kind in (("corrected", 0), ("uncorrected", 1)):
        take(
            f"ecc_{word}_errors",
            lambda kind=kind: nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC),  # type: ignore[misc]
        )
    rows = ask(lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    if rows is not None:
        values |= {"remapped_rows": float(rows[0] + rows[1]), "remap_pending": float(rows[2])}
        values["remap_failed"] = float(rows[3])
    take("pcie_replays", lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle))
    links = [_link_errors(nvml, handle, link) for link in range(_LINKS)]
    if any(found is not None for found in links):
        values["nvlink_errors"] = float(sum(found or 0 for found in links))
    reasons = ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
    states += [f"throttle: {why}" for bit, why in _THROTTLES.items() if reasons & bit]
    processes = ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
    return DeviceReading(
        device=uuid,
        source="nvml",
        name=name,
        index=index,
        pci=short_pci(_text(pci)) if pci else "",
        values=values,
        states=tuple(states),
        processes=tuple(int(one.pid) for one in processes[:_MOST_PROCESSES]),
        error=lost,
    )


def _link_errors(nvml: Any, handle: Any, link: int) -> int | None:
    """Replays, recoveries and CRC errors of one NVLink; None if there is no such link."""
    try:
        if not nvml.nvmlDeviceGetNvLinkState(handle, link):
            return None
        return sum(int(nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, kind)) for kind in range(4))
    except nvml.NVMLError:
        return None


def _of_part(part: DeviceReading, whole: DeviceReading) -> DeviceReading:
    from msgspec.structs import replace

    return replace(
        part,
        values=whole.values | part.values,
        states=whole.states,
        pci=whole.pci,
        error=part.error or whole.error,
    )


def _with_xids(reading: DeviceReading, codes: list[int]) -> DeviceReading:
    from msgspec.structs import replace

    states = (*reading.states, *(f"xid: {code}" for code in codes))
    return replace(reading, states=states) if codes else reading


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
