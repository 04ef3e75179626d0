"""A copy past the processor's cache, compiled once at set-up like the recorder (torchloom/compiled.py).

Owns that library. A worker only looks for it; where it is not, an ordinary copy does the same and takes about
a third longer.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

from torchloom import compiled

COPIER = compiled.Library("copier", (Path(__file__).with_name("copy.cpp"),))


@functools.cache
def copy_past_cache() -> Callable[[int, int, int], object] | None:
    """The function (to, from, length), which gives the interpreter free; None if it was not compiled here."""
    library = compiled.find(COPIER)
    if library is None:
        return None
    try:
        copy = ctypes.CDLL(str(library)).loom_copy_past_cache
    except (OSError, AttributeError):
        return None
    copy.argtypes, copy.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], None
    return copy
