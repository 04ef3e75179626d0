"""The states of all random number generators of this process.

Owns taking and setting them: Python's, NumPy's if it is imported, torch's, and those of CUDA devices in
use. Every rank has its own. Restoring is the last thing a restore does, because anything before it may
draw.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from torchloom.checkpoint.leaves import randoms


def take() -> dict[str, Any]:
    """Everything needed to draw the same numbers again."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state(legacy=False)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def put(state: Mapping[str, Any]) -> None:
    """Draw from there on. What this process does not have (devices, NumPy) is left out."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        with suppress(ImportError):  # imported here, it is ready when the script imports it, however late
            _put_numpy(importlib.import_module("numpy.random"), state["numpy"])
    devices = state.get("cuda", [])
    if devices and torch.cuda.is_available() and torch.cuda.device_count() == len(devices):
        torch.cuda.set_rng_state_all(devices)


def _put_numpy(found: Any, state: Any) -> None:
    """`np.random.set_bit_generator` may have put another generator behind NumPy's functions."""
    name = state["bit_generator"] if isinstance(state, Mapping) else state[0]
    if found.get_state(legacy=False)["bit_generator"] != name and name in randoms.BITS:
        found.set_bit_generator(getattr(found, name)())
    found.set_state(state)
