"""Records of what went wrong with a device: its class, whom it points at, and what to do. No behaviour."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Blame = Literal["program", "device", "driver", "network", "host", "unknown"]
"""`device`: the hardware of the GPU, its memory or its links. `driver`: its driver or firmware, or how they
are installed. `host`: memory or settings of the machine around it."""


class Xid(Struct, frozen=True, kw_only=True):
    """One error that the NVIDIA driver reported to the kernel's log or to NVML."""

    code: int
    pci: str = ""
    """`0000:3b:00`, as the driver writes it."""
    pid: int = 0
    text: str = ""
    at_ns: int = 0
    """Wall-clock time at which the agent saw it."""


class DeviceFault(Struct, frozen=True, kw_only=True):
    """The class of a crash, from the text of its error and from what the driver reported."""

    kind: str
    """For programs: `device-out-of-memory`, `ecc-error`, `xid-79`, …"""
    blame: Blame
    sentence: str
    """What it means, with the numbers of this case."""
    advice: str
    """What a person should do now."""
