"""Turns what a script holds (numbers, tensors, NumPy values, anything) into JSON that any reader accepts.

Never waits for a device: a value that lives on one is UNREAD here (metrics.py fetches it without waiting).
Numbers that JSON does not know are the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import math
import sys
from typing import Any

TEXT_CHARS = 200
ITEMS = 16
"""How much of a text or a sequence is kept."""


class _Unread:
    """The type of UNREAD."""

    def __repr__(self) -> str:
        return "UNREAD"


UNREAD = _Unread()
"""There is a value, but reading it would have to wait, or we do not know how to read it."""

Plain = bool | int | float | str | list[Any] | None


def plain(value: object) -> Plain | _Unread:
    """The value as JSON can hold it, or UNREAD. Raises nothing for values of well-behaved types."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value)[:TEXT_CHARS]
    if isinstance(value, float):
        return number(float(value))
    if isinstance(value, str):
        return value[:TEXT_CHARS]
    if isinstance(value, tuple | list):
        parts = [plain(part) for part in value[:ITEMS]]
        return [None if isinstance(part, _Unread) else part for part in parts]
    return _scalar(value)


def number(value: float) -> float | str:
    """A float that JSON knows, or its name."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def is_tensor(value: object) -> bool:
    """Whether this is a tensor; without torch there are none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _scalar(value: Any) -> Plain | _Unread:
    """One number out of a tensor on the CPU or a NumPy value."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        # Subclasses (DTensor, fake tensors) may communicate or refuse when they are read.
        ordinary = type(value) in (torch.Tensor, torch.nn.Parameter)
        if not ordinary or value.device.type != "cpu" or value.numel() != 1:
            return UNREAD
        return plain(value.detach().item())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray) and value.size == 1:
        item = value.item()
        return plain(item) if isinstance(item, bool | int | float | str) else UNREAD
    return UNREAD
