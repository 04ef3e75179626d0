"""Reads what DCGM's exporter and node_exporter publish (Prometheus's text format) as readings. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from torchloom.model.devices import DeviceReading

_SAMPLE = re.compile(r'^([A-Za-z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})?[ \t]+(\S+)')
"""A label's text may have braces in it."""
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_MOST_LINES = 50_000
MIB = 1 << 20

GPU_VALUES: dict[str, tuple[str, float]] = {
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_celsius", 1),
    "DCGM_FI_DEV_POWER_USAGE": ("power_watts", 1),
    "DCGM_FI_DEV_GPU_UTIL": ("utilization_ratio", 0.01),
    "DCGM_FI_DEV_FB_USED": ("memory_used_bytes", MIB),
    "DCGM_FI_DEV_SM_CLOCK": ("clock_hertz", 1e6),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc_corrected_errors", 1),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrected_errors", 1),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("remap_failed", 1),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": ("remap_pending", 1),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("pcie_replays", 1),
}
HOST_VALUES = {
    "node_load1": "load",
    "node_memory_MemAvailable_bytes": "memory_available_bytes",
    "node_memory_MemTotal_bytes": "memory_bytes",
}
THROTTLES = {0x08: "hardware", 0x20: "thermal", 0x40: "thermal, by hardware", 0x80: "power brake"}


def readings(text: str, node: str) -> list[DeviceReading]:
    """One reading for each GPU that is named, and one of the host."""
    values: dict[str, dict[str, float]] = {}
    states: dict[str, list[str]] = {}
    host: dict[str, float] = {}
    for name, labels, number in samples(text):
        uuid = labels.get("UUID") or labels.get("uuid") or ""
        if uuid and _is_blank(number):
            continue
        if name in HOST_VALUES:
            host[HOST_VALUES[name]] = number
        elif name == "node_hwmon_temp_celsius":
            host["temperature_celsius"] = max(number, host.get("temperature_celsius", number))
        elif uuid and name in GPU_VALUES:
            key, factor = GPU_VALUES[name]
            values.setdefault(uuid, {})[key] = number * factor
        elif uuid and name == "DCGM_FI_DEV_XID_ERRORS" and number > 0:
            states.setdefault(uuid, []).append(f"xid: {int(number)}")
        elif uuid and name in ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"):
            states.setdefault(uuid, []).extend(
                f"throttle: {why}" for bit, why in THROTTLES.items() if int(number) & bit
            )
    found = [
        DeviceReading(
            device=uuid, source="scrape", values=values.get(uuid, {}), states=tuple(states.get(uuid, ()))
        )
        for uuid in dict.fromkeys((*values, *states))
    ]
    if host:
        found.append(DeviceReading(device=f"host-{node}", source="scrape", kind="host", values=host))
    return found


def _is_blank(number: float) -> bool:
    """DCGM's numbers for a value that it does not have, of 32 and 64 bits and as a fraction. Nothing that is
    read here is negative."""
    return number < 0 or 0x7FFFFFF0 <= number <= 0x7FFFFFFF or number >= 1 << 47


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of every line that is a sample with a finite value; the rest is left out."""
    for line in text.splitlines()[:_MOST_LINES]:
        found = _SAMPLE.match(line)
        if found is None:
            continue
        try:
            number = float(found[3])
        except ValueError:
            continue
        if math.isfinite(number):
            yield found[1], dict(_LABEL.findall(found[2] or "")), number
