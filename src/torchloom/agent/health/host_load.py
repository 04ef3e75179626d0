"""The host itself: load, memory, disk and temperature. Reported only: no class of health comes of them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from torchloom.agent.health.health_source import SourceLook
from torchloom.model.devices import DeviceReading


class HostLoad:
    name, every_s, deadline_s, isolated = "host", 5.0, 30.0, False

    def __init__(self, node: str, home: Path) -> None:
        self._node, self._home = node, home

    def why_not(self) -> str:
        return ""

    def look(self) -> SourceLook:
        values = {"load": os.getloadavg()[0], "cores": float(os.cpu_count() or 1)}
        with contextlib.suppress(OSError):
            values |= _memory(Path("/proc/meminfo").read_text())
        with contextlib.suppress(OSError):
            disk = os.statvfs(self._home)
            values["disk_bytes"] = float(disk.f_blocks * disk.f_frsize)
            values["disk_free_bytes"] = float(disk.f_bavail * disk.f_frsize)
        warmest = _warmest(Path("/sys/class/thermal"))
        if warmest is not None:
            values["temperature_celsius"] = warmest
        reading = DeviceReading(device=f"host-{self._node}", source=self.name, kind="host", values=values)
        return SourceLook(readings=(reading,))

    def close(self) -> None:
        pass


def _memory(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable") and rest.split()[:1]:
            key = "memory_bytes" if name == "MemTotal" else "memory_available_bytes"
            found[key] = float(rest.split()[0]) * 1024
    return found


def _warmest(zones: Path) -> float | None:
    found = []
    for zone in sorted(zones.glob("thermal_zone*"))[:64] if zones.is_dir() else ():
        with contextlib.suppress(OSError, ValueError):
            found.append(int((zone / "temp").read_text()) / 1000)
    return max(found, default=None)
