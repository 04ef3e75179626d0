"""Random number generators that a script keeps in its state: what they are made of, and made again.

Owns Python's `Random`, torch's `Generator`, NumPy's `Generator`, `RandomState`, `SeedSequence` and all its
bit generators, each of exactly that class. What is made is a new generator that draws what the saved one
would have drawn, and spawns the same children. The generators of the process itself are in state/rng.py.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from torchloom.checkpoint.leaves import arrays
from torchloom.errors import UsageError

BITS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def take(value: Any) -> dict[str, Any] | None:
    """What it is made of, other generators among it; None if it is no generator that can be saved."""
    if type(value) is random.Random:
        return {"kind": "python", "state": value.getstate()}
    if type(value) is torch.Generator:
        return {"kind": "torch", "device": value.device.type, "state": value.get_state()}
    found: Any = sys.modules.get("numpy.random")
    if found is None:
        return None
    if type(value) is found.Generator:
        return {"kind": "generator", "bits": value.bit_generator}
    if type(value) is found.RandomState:
        state = value.get_state(legacy=False)
        return {"kind": "state", "bits": value._bit_generator, "gauss": (state["has_gauss"], state["gauss"])}
    if type(value) is found.SeedSequence:
        return {"kind": "seeds", **value.state}
    if any(type(value) is getattr(found, name) for name in BITS):
        seeds = value.seed_seq if type(value.seed_seq) is found.SeedSequence else None
        return {"kind": "bits", "name": type(value).__name__, "seeds": seeds, "state": value.state}
    return None


def make(parts: dict[str, Any]) -> Any:
    """A generator again."""
    kind = parts["kind"]
    if kind == "python":
        made = random.Random()
        made.setstate(parts["state"])
        return made
    if kind == "torch":
        return _torch(parts["device"], parts["state"])
    found = arrays.numpy().random
    if kind == "seeds":
        return found.SeedSequence(**{name: part for name, part in parts.items() if name != "kind"})
    if kind == "generator":
        return found.Generator(parts["bits"])
    if kind == "bits" and parts["name"] in BITS:
        bits = getattr(found, parts["name"])(parts["seeds"])
        if parts["seeds"] is None and parts["name"] == "MT19937":
            bits._legacy_seeding(0)  # as it was: seeded without a sequence of seeds
        bits.state = parts["state"]
        return bits
    if kind == "state":
        state = found.RandomState(parts["bits"])
        has_gauss, gauss = parts["gauss"]
        state.set_state({**state.get_state(legacy=False), "has_gauss": has_gauss, "gauss": gauss})
        return state
    raise ValueError(f"there is no generator {kind!r}")


def _torch(device: str, state: torch.Tensor) -> torch.Generator:
    try:
        made = torch.Generator(device)
    except RuntimeError as error:
        raise UsageError(
            f"the checkpoint holds a torch.Generator of {device}, which this process has not",
            hint="restore where such a device is, or keep the generator on the CPU",
        ) from error
    made.set_state(state)
    return made
