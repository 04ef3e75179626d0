"""Which device this worker uses, as far as it can tell without touching one. Initialises nothing."""

from __future__ import annotations

import os
import sys
from typing import Any

CORES = 500
"""How many cores are listed, so that the text fits its place in the black box."""


def describe() -> dict[str, Any]:
    """The CUDA device once the script has initialised CUDA, the CPU cores this process may use until then."""
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
    return {"kind": "cpu", "cores": sorted(os.sched_getaffinity(0))[:CORES]}
