"""Which device this worker uses, as far as it can be seen without touching one. Initialises nothing."""

from __future__ import annotations

import os
import sys
from typing import Any

CORES = 500
"""How many cores are listed, so that the text fits its place in the black box."""


def describe() -> dict[str, Any]:
    """The accelerator once the script has initialised it, and the CPU cores this process may use."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        index = cuda.current_device()
        properties = cuda.get_device_properties(index)
        return {
            "kind": "cuda",
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "index": index,
            "name": properties.name,
            "uuid": str(getattr(properties, "uuid", "")) or None,
        }
    cores = {"kind": "cpu", "cores": sorted(os.sched_getaffinity(0))[:CORES]}
    return cores | _other(torch) if torch is not None else cores


def _other(torch: Any) -> dict[str, Any]:
    """Whatever torch calls the accelerator here, if it is in use: ROCm and CUDA are handled above."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or (named := accelerator.current_accelerator()) is None or named.type == "cuda":
        return {}
    module = getattr(torch, named.type, None)
    if module is None or not getattr(module, "is_initialized", lambda: False)():
        return {}
    return {"accelerator": named.type, "index": accelerator.current_device_index()}
