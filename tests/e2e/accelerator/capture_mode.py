"""The relaxed capture mode of a device's library, found at run time: `capture_mode.py LIBRARY`."""

from __future__ import annotations

import ctypes
import json
import os
import sys

import torch  # noqa: F401  the recorder is linked against it

from torchloom.probe import native

CUDA, HIP, XPU = 1, 6, 12
recorder = ctypes.CDLL(str(native.find()))
before = [recorder.loom_relax(kind) for kind in (CUDA, HIP, XPU)]
stand_in = ctypes.CDLL(
    sys.argv[1], os.RTLD_LOCAL | os.RTLD_NOW
)  # not in the global scope: it must be searched for
after = [recorder.loom_relax(CUDA), recorder.loom_relax(CUDA)]
print(
    json.dumps({"before": before, "after": after, "other": recorder.loom_relax(XPU), "mode": stand_in.mode()})
)
