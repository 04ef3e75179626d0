"""How many steps the loaded state of an optimizer has made, by its own count.

A script that saves with `torch.save` and reports no steps resumes at step 6,000 with an optimizer whose state
says so (Adam and its kin, Adagrad, RMSprop, ASGD … count; SGD and LBFGS do not). Read once, before the first
step of a process. A fresh optimizer has no state, so nothing is read there and no device is waited for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torchloom.probe.observe.values import is_tensor


def continue_from(continue_after: Callable[[int], None], optimizer: Any) -> None:
    """Count on from the loaded state, if there is one that counts."""
    made = steps_of_state(optimizer)
    if made:
        continue_after(made)


def steps_of_state(optimizer: Any) -> int:
    """The most steps that any parameter has made: not every one has a gradient in every step."""
    states = getattr(optimizer, "state", None)
    counts: list[Any] = []
    if isinstance(states, Mapping):
        counts = [
            state["step"] for state in states.values() if isinstance(state, Mapping) and "step" in state
        ]
    here = [int(count) for count in counts if isinstance(count, int | float)]
    tensors = [count for count in counts if is_tensor(count) and count.numel() == 1]
    for device in {tensor.device for tensor in tensors}:
        if device.type == "cuda" and sys.modules["torch"].cuda.is_current_stream_capturing():
            continue  # to wait for the device would break the capture
        there = [tensor.reshape(()) for tensor in tensors if tensor.device == device]
        here.append(int(sys.modules["torch"].stack(there).max().item()))
    return max(here, default=0)
