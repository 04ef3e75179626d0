"""Hyperparameters of every param group of every optimizer, as the HYPERPARAMETERS blob.

    {"step": 12, "left_out": 0, "optimizers": [
        {"name": "AdamW", "anchor": true, "groups": [{"parameters": 4, "lr": 0.001, …}]}]}

Looks at groups, never at parameters, and the session calls it after a step, now and then, so the values are
those the step used, with what is held over the script's own. A value that cannot be read without waiting for
a device is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torchloom.core.config.overrides import Held
from torchloom.core.config.settings import parse_address
from torchloom.probe.observe.values import UNREAD, plain
from torchloom.wire.blackbox import HYPERPARAMETERS, View

_NOTHING: Mapping[str, Held] = MappingProxyType({})
OPTIMIZERS = 16
GROUPS = 64
"""How many optimizers, and groups of each, are described; the rest is counted in "left_out"."""


class Hyperparameters:
    """Rewrites the blob when a value has changed."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._written: object = None

    def write_changed(
        self, optimizers: Sequence[Any], step: int, held: Mapping[str, Held] = _NOTHING
    ) -> None:
        """Compare with what was written last; the first of `optimizers` is the anchor.

        With none left (a script that ends has dropped them) the last known values stay.
        """
        if not any(optimizer is not None for optimizer in optimizers):
            return
        described, left_out = describe(optimizers, held)
        if described != self._written:
            self._view.write_blob(HYPERPARAMETERS, _fitting(described, left_out, step))
            self._written = described


def describe(
    optimizers: Sequence[Any], held: Mapping[str, Held] = _NOTHING
) -> tuple[list[dict[str, Any]], int]:
    """The optimizers' groups as JSON can hold them, with what steps use, and how many groups are left out.

    One that is gone keeps its number, with no groups, so that the others keep theirs.
    """
    described: list[dict[str, Any]] = []
    left_out = sum(len(optimizer.param_groups) for optimizer in optimizers[OPTIMIZERS:] if optimizer)
    for place, optimizer in enumerate(optimizers[:OPTIMIZERS]):
        if optimizer is None:
            described.append({"name": "", "anchor": place == 0, "groups": []})
            continue
        groups = optimizer.param_groups
        left_out += max(0, len(groups) - GROUPS)
        described.append(
            {
                "name": type(optimizer).__name__,
                "anchor": place == 0,
                "groups": [_group(group) for group in groups[:GROUPS]],
            }
        )
    for text, one in held.items():
        at = parse_address(text)
        if at.optimizer is not None and at.group is not None and at.optimizer < len(described):
            known = described[at.optimizer]["groups"]
            if at.group < len(known):
                known[at.group][at.name] = one.value
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
