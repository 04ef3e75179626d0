"""Which run a checkpoint comes from, and its figures, in words that a manifest can hold. Owns nothing."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping

import torch


def describe() -> dict[str, str]:
    """Who saved it."""
    return {
        "host": socket.gethostname(),
        "script": os.path.basename(sys.argv[0]) if sys.argv else "",
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
    }


def figures(metrics: Mapping[str, object]) -> dict[str, float]:
    """Those metrics that are numbers. Waits for a device if a value is still being computed there."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, torch.Tensor):
            value = value.detach().item() if value.numel() == 1 else None
        if isinstance(value, (int, float)):
            found[name] = float(value)
    return found
