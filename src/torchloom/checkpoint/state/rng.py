"""The states of all random number generators of this process.

Owns taking and setting them: Python's, NumPy's if it is imported, torch's, and those of CUDA devices in
use. Every rank has its own. Restoring is the last thing a restore does, because anything before it may
draw.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def take() -> dict[str, Any]:
    """Everything needed to draw the same numbers again."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state()
        state["numpy"] = (str(name), keys, int(position), int(has_gauss), float(gauss))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def put(state: Mapping[str, Any]) -> None:
    """Draw from there on. What this process does not have (NumPy, devices) is left out."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    devices = state.get("cuda", [])
    if devices and torch.cuda.is_available() and torch.cuda.device_count() == len(devices):
        torch.cuda.set_rng_state_all(devices)
