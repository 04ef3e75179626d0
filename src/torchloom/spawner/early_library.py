"""Loads torch's C++ library on another core while this one imports Python modules that do not need it.

Loading libtorch_cpu.so (relocations, page faults, its registrations) takes 0.2 s and no Python; importing
sympy, which torch._dynamo needs, takes as long and no library. The thread has ended when `load_beside`
returns: a process is forked afterwards. Whatever goes wrong only means that `import torch` loads the library
itself.

libtorch_python.so is left alone: what it does when it is loaded might need the interpreter's lock.
"""

from __future__ import annotations

import _thread
import ctypes
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

BESIDE = "sympy"
_EXTENSIONS = (
    "array",
    "bisect",
    "bz2",
    "cmath",
    "decimal",
    "hashlib",
    "lzma",
    "random",
    "resource",
    "shutil",
    "subprocess",
    "typing",
    "unicodedata",
)
"""What sympy imports of Python's own compiled modules. They come first: loading one of them later would wait
for the lock that the loader of libraries holds all the time."""
_LIBRARIES = (("libtorch_global_deps.so", os.RTLD_GLOBAL), ("libtorch_cpu.so", os.RTLD_LOCAL))
"""In the order and with the flags of `import torch`."""
_GONE_WITHIN_S = 1.0


def load_beside(threads: Callable[[], int]) -> None:
    """Load torch's library and import sympy at the same time. `threads`: how many this process has."""
    libraries = _libraries()
    if not libraries:
        return
    for name in _EXTENSIONS:
        with suppress(ImportError):
            importlib.import_module(name)
    dlopen = ctypes.CDLL(None).dlopen  # a foreign function, called without the interpreter's lock
    dlopen.restype, dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
    before = threads()
    busy = _thread.allocate_lock()
    busy.acquire()

    def load() -> None:
        try:
            for path, flags in libraries:
                if not dlopen(path, flags):
                    break
        finally:
            busy.release()

    # Not threading.Thread: the script's first thread is to be number 1.
    _thread.start_new_thread(load, ())
    with suppress(Exception):  # torch's own import meets it again, and says so
        importlib.import_module(BESIDE)
    busy.acquire()
    give_up_s = time.monotonic() + _GONE_WITHIN_S
    while threads() > before and time.monotonic() < give_up_s:
        time.sleep(0.0002)


def _libraries() -> list[tuple[bytes, int]]:
    """Paths and flags; empty where there is nothing to gain, or torch would load them in another way."""
    if "torch" in sys.modules or os.environ.get("TORCH_USE_RTLD_GLOBAL") or _cores() < 2:
        return []
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return []
    if spec is None or spec.origin is None or not hasattr(ctypes.CDLL(None), "dlopen"):
        return []
    directory = Path(spec.origin).parent / "lib"
    found = [(directory / name, flags | os.RTLD_NOW) for name, flags in _LIBRARIES]
    return [(os.fsencode(path), flags) for path, flags in found] if all(p.exists() for p, _ in found) else []


def _cores() -> int:
    return len(os.sched_getaffinity(0))
