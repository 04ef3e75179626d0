"""What a manifest records about a state besides its files: its run, its figures. Owns nothing."""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import Mapping

import torch

from torchloom.checkpoint import live, reporting
from torchloom.checkpoint.state.training_parts import State
from torchloom.checkpoint.store.manifest import Facts
from torchloom.checkpoint.store.names import CheckpointName


def facts_of(state: State, parent: str, metrics: Mapping[str, object]) -> Facts:
    """The facts of the present state."""
    told = figures(metrics)
    return Facts(
        epoch=state.epoch,
        config_version=live.config_version(),
        cursor=state.cursor(),
        rng="own",
        parent=parent,
        metrics=told,
        finite=reporting.ports.finite() and math.isfinite(told.get("loss", 0.0)),
        lineage=describe(),
    )


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


def about_state(state: State, name: CheckpointName) -> dict[str, object]:
    """What each rank's image says about itself, besides what the script gave."""
    return {
        "step": name.step,
        "epoch": state.epoch,
        "generation": name.generation,
        "config_version": live.config_version(),
    }
