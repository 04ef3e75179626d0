"""The states of all random number generators of this process.

Owns taking and setting them: Python's, NumPy's if it is imported, torch's, and those of the accelerator in
use, whatever torch calls it. Every rank has its own. Restoring is the last thing a restore does, because
anything before it may draw.
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
    used = _in_use()
    if used is not None:
        name, module, count = used
        state[name] = [module.get_rng_state(number) for number in range(count)]
    return state


def put(state: Mapping[str, Any]) -> None:
    """Draw from there on. What this process does not have (devices, NumPy) is left out."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        with suppress(ImportError):  # imported here, it is ready when the script imports it, however late
            _put_numpy(importlib.import_module("numpy.random"), state["numpy"])
    # In use or not yet: a script may touch its device only after the restore.
    found = _accelerator()
    if found is not None and len(devices := state.get(found[0], ())) == found[2]:
        for number, one in enumerate(devices):
            found[1].set_rng_state(one, number)


def _in_use() -> tuple[str, Any, int] | None:
    """The accelerator, unless nothing has used it yet: asking it would make a context on every device."""
    found = _accelerator()
    started = found is not None and getattr(found[1], "is_initialized", lambda: True)()
    return found if started else None


def _accelerator() -> tuple[str, Any, int] | None:
    """The name of the accelerator, its module in torch, and how many devices it has; None without one whose
    generators can be read."""
    accelerators: Any = getattr(torch, "accelerator", None)
    if accelerators is None or not accelerators.is_available():
        return None
    name = accelerators.current_accelerator().type
    module = getattr(torch, name, None)
    if module is None or not hasattr(module, "get_rng_state") or not hasattr(module, "set_rng_state"):
        return None
    return name, module, accelerators.device_count()


def _put_numpy(found: Any, state: Any) -> None:
    """`np.random.set_bit_generator` may have put another generator behind NumPy's functions."""
    name = state["bit_generator"] if isinstance(state, Mapping) else state[0]
    if found.get_state(legacy=False)["bit_generator"] != name and name in randoms.BITS:
        found.set_bit_generator(getattr(found, name)())
    found.set_state(state)
