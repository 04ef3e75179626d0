"""NVIDIA's Xid codes: the vendor's meaning, whom a code points at, what to do. And the lines that carry them.

Checked against NVIDIA's public catalogue (docs.nvidia.com/deploy/xid-errors, for Ampere and newer) and the
names in its open driver (nverror.h): the advice is what the catalogue says to do at once. A code is a
starting point and no proof: the catalogue itself says that bad memory can cause almost any of them.
"""

from __future__ import annotations

import re

from msgspec import Struct

from torchloom.model.device_faults import Blame, Xid

_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?)\): "
    r"(?P<code>\d{1,4})(?P<rest>[^\n]*)"
)
_PID = re.compile(r"pid='?(\d{1,10})")
_TEXT = 200

RESTART = "Restart the job; if it comes again with the same code, look for the fault in the program."
RESET = "Do not use this GPU before it is reset (nvidia-smi --gpu-reset) or the host is rebooted."
REPLACE = f"{RESET} If it comes again, have the GPU replaced."


class XidMeaning(Struct, frozen=True):
    meaning: str
    blame: Blame
    advice: str
    harmless: bool = False
    """The program is not affected: it explains no crash and no hang if anything else does."""


def _program(meaning: str) -> XidMeaning:
    return XidMeaning(
        meaning, "program", f"{RESTART} CUDA_LAUNCH_BLOCKING=1 shows the call, compute-sanitizer the kernel."
    )


def _device(meaning: str, advice: str = REPLACE) -> XidMeaning:
    return XidMeaning(meaning, "device", advice)


def _driver(meaning: str, advice: str = f"{RESET} Update the driver if it comes again.") -> XidMeaning:
    return XidMeaning(meaning, "driver", advice)


def _watch(meaning: str) -> XidMeaning:
    advice = "The job may continue. Have the GPU looked at when it is free; replace it if this comes often."
    return XidMeaning(meaning, "device", advice, harmless=True)


_LINK = (
    "Do not place the job on this GPU again; check the NVLink bridge or switch, then reset the GPUs on it."
)
_ENGINE = "exception of a copy or video engine"
MEANINGS: dict[int, XidMeaning] = {
    8: XidMeaning("the GPU stopped processing", "unknown", RESTART),
    11: _program("invalid or corrupted push buffer stream"),
    13: _program("graphics engine exception: an access out of bounds or an illegal instruction in a kernel"),
    31: _program("GPU memory page fault: a kernel accessed an illegal address"),
    32: _driver(
        "invalid or corrupted push buffer stream, by the driver or on the PCIe bus",
        "Restart the job; if it comes again, check the PCIe slot and update the driver.",
    ),
    38: _driver("driver firmware error"),
    43: _program("the GPU stopped processing: a fault that the program caused"),
    44: XidMeaning("graphics engine fault during a context switch", "unknown", RESTART),
    45: XidMeaning(
        "preemptive cleanup, which follows an earlier error or the end of the process",
        "unknown",
        "Look at the error before it: this one is a consequence.",
    ),
    46: _device("the GPU stopped processing"),
    48: _device("double-bit ECC error: memory of the GPU gave wrong data"),
    61: _driver("breakpoint or warning of the internal micro-controller"),
    62: _device("the internal micro-controller halted"),
    63: _device(
        "a memory page was retired or a row remapped",
        "Finish or move the job, then reset the GPU: the remapping takes effect with the reset.",
    ),
    64: _device("a bad memory page could not be retired, or a row not remapped"),
    69: _program("graphics engine class error"),
    74: _device("NVLink error", _LINK),
    78: _driver("a virtual GPU could not be started", "Update the driver of host and guest."),
    79: _device(
        "the GPU has fallen off the bus",
        "Do not use this GPU: the host must be rebooted, often power-cycled. Check power, temperature and "
        "the PCIe slot; have it replaced if it comes again.",
    ),
    80: _program("push buffer data was corrupted (checksum mismatch)"),
    92: _watch("a high rate of single-bit ECC errors, which were corrected"),
    93: _watch("its information ROM has been erased too often"),
    94: _device(
        "contained ECC error: memory gave wrong data, and only this process was affected",
        "Restart the job on another GPU; reset this one before it is used again.",
    ),
    95: _device("uncontained ECC error: memory gave wrong data, and other processes may be affected"),
    109: _driver("timeout of a context switch"),
    110: _device("security fault"),
    119: _driver("the GPU's system processor (GSP) did not answer the driver"),
    120: _driver("error of the GPU's system processor (GSP)"),
    121: _watch("corrected error of the chip-to-chip link (C2C)"),
    122: _device("the GPU's SPI flash could not be read"),
    123: _device("the GPU's SPI flash could not be written"),
    124: _device("the GPU's SPI flash could not be erased"),
    125: _watch("error in the file system of its information ROM"),
    136: _device("a link of NVLink could not be trained", _LINK),
    137: _program("a kernel accessed an illegal address of another GPU over NVLink"),
    140: _device("unrecovered ECC error"),
    143: _device("the GPU could not be initialised"),
    151: _driver("error while keys were rotated (confidential computing)", "Restart the virtual machine."),
    154: XidMeaning(
        "the driver asks for a recovery action", "unknown", "Do what its text in the kernel log asks for."
    ),
    155: _device("NVLink error that software reported", _LINK),
    156: _device("a part of the GPU was retired", "Finish or move the job, then reset the GPU."),
    157: _watch("a part of the GPU could not be retired"),
    158: _device("fatal timeout of the GPU"),
    167: _device("fatal timeout on the PCIe bus"),
    168: _watch("the GPU has less memory than before"),
    171: _device("uncorrectable error of the GPU's memory (DRAM)"),
    172: _device("uncorrectable error of the GPU's internal memory (SRAM)"),
}
for _code in range(144, 151):
    MEANINGS[_code] = _device("NVLink error", _LINK)
for _code in (*range(39, 43), 47, 65, 68, *range(70, 74), *range(75, 78), *range(82, 87), 88, 89):
    MEANINGS[_code] = XidMeaning(_ENGINE, "unknown", RESTART)
for _code in (*range(96, 106), *range(126, 136), 139, 142):
    MEANINGS[_code] = XidMeaning(_ENGINE, "unknown", RESTART)


def meaning_of(code: int) -> XidMeaning:
    return MEANINGS.get(code) or XidMeaning(
        "a code without an entry in torchloom's table", "unknown", "See NVIDIA's catalogue of Xid codes."
    )


def read_line(line: str, at_ns: int = 0) -> Xid | None:
    """An Xid in a line of the kernel's log: `NVRM: Xid (PCI:0000:3b:00): 79, pid=1896, GPU has …`."""
    found = _LINE.search(line)
    if found is None:
        return None
    rest = found["rest"]
    pid = _PID.search(rest)
    return Xid(
        code=int(found["code"]),
        pci=short_pci(found["pci"]),
        pid=int(pid[1]) if pid else 0,
        text=rest.lstrip(" ,")[:_TEXT],
        at_ns=at_ns,
    )


def short_pci(address: str) -> str:
    """`00000000:3B:00.0`, as NVML writes it, to `0000:3b:00`, as the kernel does."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest.partition('.')[0]}"
