"""Hyperparameters of every param group of every optimizer, as the HYPERPARAMETERS blob.

    {"step": 12, "left_out": 0, "optimizers": [
        {"name": "AdamW", "anchor": true, "groups": [{"parameters": 4, "lr": 0.001, …}]}]}

Looks at groups, never at parameters, and the session calls it after a step, now and then, so the values are
those the step used. A value that cannot be read without waiting for a device is null.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torchloom.probe.values import UNREAD, plain
from torchloom.wire.blackbox import HYPERPARAMETERS, View

OPTIMIZERS = 16
GROUPS = 64
"""How many optimizers, and groups of each, are described; the rest is counted in "left_out"."""


class Hyperparameters:
    """Rewrites the blob when a value has changed."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._written: object = None

    def write_changed(self, optimizers: Sequence[Any], step: int) -> None:
        """Compare with what was written last; the first of `optimizers` is the anchor.

        With none left (a script that ends has dropped them) the last known values stay.
        """
        if not optimizers:
            return
        described, left_out = describe(optimizers)
        if described != self._written:
            self._view.write_blob(HYPERPARAMETERS, _fitting(described, left_out, step))
            self._written = described


def describe(optimizers: Sequence[Any]) -> tuple[list[dict[str, Any]], int]:
    """The optimizers' groups as JSON can hold them, and how many groups are left out."""
    described = []
    left_out = sum(len(optimizer.param_groups) for optimizer in optimizers[OPTIMIZERS:])
    for place, optimizer in enumerate(optimizers[:OPTIMIZERS]):
        groups = optimizer.param_groups
        left_out += max(0, len(groups) - GROUPS)
        described.append(
            {
                "name": type(optimizer).__name__,
                "anchor": place == 0,
                "groups": [_group(group) for group in groups[:GROUPS]],
            }
        )
    return described, left_out


def _group(group: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {"parameters": len(group["params"])}
    for name, value in group.items():
        # param_names (named parameters) is one text per parameter: not a setting.
        if name not in ("params", "param_names") and isinstance(name, str):
            taken = plain(value)
            result[name] = None if taken is UNREAD else taken
    return result


def _fitting(described: list[dict[str, Any]], left_out: int, step: int) -> bytes:
    """The JSON, with groups taken away from the end until it fits the blob."""
    kept = [{**optimizer, "groups": list(optimizer["groups"])} for optimizer in described]
    while True:
        text = json.dumps({"step": step, "optimizers": kept, "left_out": left_out}).encode()
        if len(text) <= HYPERPARAMETERS.capacity:
            return text
        longest = max(kept, key=lambda optimizer: len(optimizer["groups"]))
        if not longest["groups"]:
            return json.dumps({"step": step, "optimizers": [], "left_out": left_out}).encode()
        drop = max(1, len(longest["groups"]) // 4)
        del longest["groups"][-drop:]
        left_out += drop
