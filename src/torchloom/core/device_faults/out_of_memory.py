"""Out of memory on a device: whose, how much, and what else was there. From torch's own sentence.

The sentence is that of CUDACachingAllocator.cpp; HIP and XPU write the same with their own name. Parts of it
depend on the version and on what the driver allows the process to see, so every part may be missing.
"""

from __future__ import annotations

import re

from torchloom.model.device_faults import DeviceFault

_SIZE = r"(\d+(?:\.\d+)?) ?([KMGT]?i?B|bytes)"
_ASKED = re.compile(rf"Tried to allocate (?P<asked>{_SIZE})")
_PLACE = re.compile(
    rf"(?:GPU |device )(?P<gpu>\d+)(?: has a total capacity of (?P<total>{_SIZE})"
    rf"(?: of which (?P<free>{_SIZE}) is free)?)?"
)
_OLD = re.compile(rf"\(GPU (?P<gpu>\d+); (?P<total>{_SIZE}) total capacity;.*?(?P<free>{_SIZE}) free;", re.S)
_OTHER = re.compile(rf"Process (?P<pid>\d+) has (?P<held>{_SIZE}) memory in use")
_OWN = re.compile(rf"this process has (?P<held>{_SIZE}) memory in use")
_IDLE = re.compile(rf"(?P<idle>{_SIZE}) is reserved by PyTorch but unallocated")
_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def out_of_memory(text: str) -> DeviceFault:
    """The case in numbers, and the advice that follows from them."""
    place = _OLD.search(text) or _PLACE.search(text)
    asked, own, idle = _ASKED.search(text), _OWN.search(text), _IDLE.search(text)
    others = [(m["pid"], m["held"]) for m in _OTHER.finditer(text)]
    said = f"GPU {place['gpu']} ran out of memory" if place else "the device ran out of memory"
    if asked:
        said += f": {asked['asked']} were asked for"
        if place and place["total"]:
            free = f"{place['free']} of " if place["free"] else "none of "
            said += f" and {free}{place['total']} were free"
    if own:
        said += f"; this process held {own['held']}"
    if others:
        said += "; " + " and ".join(f"process {pid} held {held}" for pid, held in others[:4])
    return DeviceFault(
        kind="device-out-of-memory",
        blame="host" if _others_hold_more(others, own["held"] if own else "") else "program",
        sentence=said,
        advice=_advice(others, own["held"] if own else "", idle["idle"] if idle else "", asked),
    )


def _advice(others: list[tuple[str, str]], own: str, idle: str, asked: re.Match[str] | None) -> str:
    if _others_hold_more(others, own):
        pids = ", ".join(pid for pid, _ in others[:4])
        return f"Another program uses the device: end process {pids}, or give the job a device of its own."
    if idle and asked and _bytes(idle) >= _bytes(asked["asked"]):
        return (
            f"{idle} were reserved and unused, so the memory is fragmented: set "
            "PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before torch 2.9)."
        )
    return (
        "Use a smaller batch, gradient checkpointing or more sharding; a restart alone ends the same way "
        "unless the memory was taken by something that is gone."
    )


def _others_hold_more(others: list[tuple[str, str]], own: str) -> bool:
    return bool(others) and sum(_bytes(held) for _, held in others) > (_bytes(own) if own else 0)


def _bytes(size: str) -> float:
    found = re.fullmatch(_SIZE, size)
    return float(found[1]) * _UNITS.get(found[2], 1) if found else 0.0
