"""Who records collectives in this process: the native recorder when its library is there, else the fallback.

`load` may run in the warm spawner before the fork: it maps the library and registers kernels that only pass
calls on; it starts no thread and runs no tensor operation. `start` runs in the worker, once its black box is
mapped. torch must have been imported before either; neither imports it, because an unmodified script decides
when that happens.

This module decides and wires; what is written, and how, is native/recorder.cpp's and fallback.py's.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Protocol

from torchloom.probe import native
from torchloom.probe.observe import batches, fallback_recorder
from torchloom.wire.blackbox import Progress, View
from torchloom.wire.blackbox import RecorderKind as Kind


class Recorder(Protocol):
    """A running recorder."""

    @property
    def kind(self) -> Kind: ...

    def step_ended(self) -> None:
        """To be called after every step of the anchor optimizer: a sampling recorder chooses by it."""

    def stop(self) -> None:
        """Stop recording. The black box must stay mapped."""


class Native:
    """The C++ kernels, recording into one black box."""

    kind = Kind.NATIVE

    def __init__(self, library: ctypes.CDLL, view: View, address: int) -> None:
        # Backend threads write completions until the process is gone, also while Python is being torn down:
        # one reference that is never dropped keeps the mapping that long.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(view.raw))
        if library.loom_start(ctypes.c_void_p(address)) != 0:
            raise OSError("the native recorder did not start")
        self._library = library
        batches.watch()

    def step_ended(self) -> None:
        """Nothing to choose: every collective is recorded."""

    def stop(self) -> None:
        self._library.loom_stop()


class Nothing:
    """No recorder: torch has no c10d here, or recording is switched off."""

    kind = Kind.NONE

    def step_ended(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""


_library: ctypes.CDLL | None = None


def load() -> None:
    """Register the kernels. They only redispatch until `start`. May be called again: nothing happens.

    LOOM_RECORDER=native, python or none overrides the choice (native first, then Python).
    """
    load_native()
    wish = os.environ.get("LOOM_RECORDER", "")
    if "torch" not in sys.modules or _library is not None or fallback_recorder.is_loaded():
        return
    if wish not in ("none", "native"):
        fallback_recorder.load()


def load_native() -> None:
    """The same without the fallback: for a spawner, whose library may still come (build_beside.py)."""
    global _library
    unwanted = os.environ.get("LOOM_RECORDER") in ("python", "none") or fallback_recorder.is_loaded()
    if "torch" in sys.modules and _library is None and not unwanted:
        _library = _load_native()


def is_native() -> bool:
    """Whether the native recorder is loaded."""
    return _library is not None


def start(view: View, address: int) -> Recorder:
    """Record this process's collectives into the black box `view`, whose mapping begins at `address`."""
    load()
    recorder: Recorder
    # A warm spawner has loaded what its own environment says; the worker's decides.
    wish = os.environ.get("LOOM_RECORDER", "")
    if wish == "python" and "torch" in sys.modules and not fallback_recorder.is_loaded():
        fallback_recorder.load()
    if wish == "none":
        recorder = Nothing()
    elif _library is not None and wish != "python":
        recorder = Native(_library, view, address)
    elif fallback_recorder.is_loaded():
        recorder = fallback_recorder.Fallback(view)
    else:
        recorder = Nothing()
    view.set_progress(Progress.RECORDER, recorder.kind)
    return recorder


def _load_native() -> ctypes.CDLL | None:
    path = native.find()
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:  # built for another torch, or one without c10d
        return None
    return library if library.loom_load() > 0 else None
