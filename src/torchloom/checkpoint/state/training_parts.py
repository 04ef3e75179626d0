"""The parts of a training that are saved, and which ranks have them in common.

Owns taking their state and giving it back. Replicas under DDP hold the same model and optimizer, so one
rank keeps it for all (`shared`); everything else belongs to the rank (`own`): random numbers, data
positions, shards of FSDP, and whatever is not known to be equal. That includes a replica's buffers: DDP makes
them equal when a forward begins, so at the end of a step each rank has its own. Does not know where states
are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from torchloom.checkpoint import reporting
from torchloom.checkpoint.state import buckets, rng
from torchloom.errors import UsageError

ABOUT = "loom"
WRITES = "writes"
"""The name under which a rank keeps what is not a part of the script: step, random numbers, buckets."""
DIFFERING = "loom.differing"
"""The name under which a rank keeps those tensors of replicated models that it does not have in common."""


@dataclass(frozen=True)
class Component:
    """One thing with a state."""

    name: str
    thing: Any

    @property
    def inner(self) -> Any:
        """Without wrappers, so that the names in the state do not depend on them."""
        thing = self.thing
        while True:
            if isinstance(thing, DistributedDataParallel):
                thing = thing.module
            elif hasattr(thing, "_orig_mod"):
                thing = thing._orig_mod
            else:
                return thing

    @property
    def in_place(self) -> bool:
        """May the tensors of its state be written to where they are?"""
        return isinstance(self.inner, (nn.Module, Optimizer))

    def state(self) -> Any:
        with reporting.ports.own_values(False):
            return self.inner.state_dict()

    def parameter(self, path: tuple[object, ...]) -> Any:
        """For an optimizer, the parameter that a tensor of its state belongs to."""
        if not isinstance(self.inner, Optimizer) or len(path) < 4 or path[1] != "state":
            return None
        parameters = [p for group in self.inner.param_groups for p in group["params"]]
        number = path[2]
        return parameters[number] if isinstance(number, int) and number < len(parameters) else None


class State:
    """All components of a script."""

    def __init__(self, named: Mapping[str, Any], replicated: Collection[str] | None) -> None:
        self.components = list(_components(named))
        if not self.components:
            raise UsageError("there is nothing to save", hint="give Checkpoint a model")
        unknown = set(replicated or ()) - {component.name for component in self.components}
        if unknown:
            raise UsageError(f"replicated names {', '.join(sorted(unknown))}, which is not saved")
        self._replicated = replicated
        self._shared: set[str] | None = None
        self._orders: dict[str, list[int]] = {}

    @property
    def epoch(self) -> int:
        for component in self.components:
            epoch = getattr(component.inner, "epoch", None)
            if isinstance(epoch, int) and not isinstance(epoch, bool) and epoch >= 0:
                return epoch
        return 0

    def cursor(self) -> Any:
        """The position in the data, for the manifest: the state of the part that declares itself as data."""
        for component in self.components:
            if getattr(component.inner, "state_dict", None) and not component.in_place:
                state = component.state()
                if isinstance(state, Mapping) and state.get("kind") in ("map", "lines"):
                    return {k: v for k, v in state.items() if isinstance(v, (int, float, str, bool))}
        return None

    def take(self, facts: Mapping[str, Any], with_shared: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """(own, shared) trees of live tensors. All ranks must call it at the same step."""
        shared_names = self._shared_names()
        own: dict[str, Any] = {}
        shared: dict[str, Any] = {}
        for component in self.components:
            if component.name not in shared_names:
                own[component.name] = component.state()
            elif with_shared:
                shared[component.name] = component.state()
        if differing := {c.name: found for c in self.components if (found := _differing(c, shared_names))}:
            own[DIFFERING] = differing
        about = {"rng": rng.take(), "buckets": self._bucket_orders(), WRITES: self._script_writes()}
        own[ABOUT] = {**facts, **about}
        return own, shared

    def snapshot(self) -> dict[str, Any]:
        """Everything of this rank as a tree of live tensors; unlike `take`, not a collective call."""
        trees = {component.name: component.state() for component in self.components}
        return {**trees, ABOUT: {"rng": rng.take(), WRITES: self._script_writes()}}

    def _script_writes(self) -> dict[str, Any]:
        """What is known of the script's writes to its optimizers' param groups."""
        optimizers = [c for c in self.components if isinstance(c.inner, Optimizer)]
        told = {c.name: reporting.ports.script_writes(c.inner) for c in optimizers}
        return {name: known for name, known in told.items() if known is not None}

    def warm_buckets(self, orders: Mapping[str, Sequence[int]]) -> None:
        """Bring DDP's buckets to where they were. A collective operation, before anything is restored."""
        for component in self.components:
            order = orders.get(component.name)
            if not isinstance(component.thing, DistributedDataParallel) or not order:
                continue
            if buckets.warm(component.thing, list(order)):
                self._orders[component.name] = list(order)

    def _bucket_orders(self) -> dict[str, list[int]]:
        for component in self.components:
            if isinstance(component.thing, DistributedDataParallel) and component.name not in self._orders:
                order = buckets.arrival_order(component.thing)
                if order:
                    self._orders[component.name] = order
        return dict(self._orders)

    def _shared_names(self) -> set[str]:
        if self._shared is None:
            if self._replicated is not None:
                self._shared = set(self._replicated)
            else:
                self._shared = _replicated_by_ddp(self.components)
        return self._shared


def _components(named: Mapping[str, Any]) -> Iterator[Component]:
    for name, thing in named.items():
        if thing is None:
            continue
        if not name.isidentifier() or name == ABOUT:
            raise UsageError(f"{name!r} cannot name a part of a checkpoint")
        several = thing if isinstance(thing, (list, tuple)) else None
        for n, each in enumerate(several or [thing]):
            component = Component(f"{name}.{n}" if several else name, each)
            inner = component.inner
            if not (callable(getattr(inner, "state_dict", None)) and hasattr(inner, "load_state_dict")):
                raise UsageError(
                    f"{name} has no state_dict() and load_state_dict()", hint="give things that have both"
                )
            yield component


def _replicated_by_ddp(components: Sequence[Component]) -> set[str]:
    """Models under DDP and optimizers of nothing but their parameters: equal by construction."""
    names: set[str] = set()
    known: set[int] = set()
    for component in components:
        model = component.thing
        if isinstance(model, DistributedDataParallel):
            own_buffers = not model.broadcast_buffers and any(True for _ in model.buffers())
            if not own_buffers:
                names.add(component.name)
                known.update(id(parameter) for parameter in model.parameters())
    for component in components:
        inner = component.inner
        if isinstance(inner, Optimizer) and type(inner).__name__ != "ZeroRedundancyOptimizer":
            parameters = [p for group in inner.param_groups for p in group["params"]]
            if parameters and all(id(p) in known for p in parameters):
                names.add(component.name)
    return names


def _differing(component: Component, shared: Collection[str]) -> dict[str, Any]:
    """What DDP does not keep equal in a model that one rank keeps for all."""
    model = component.thing
    if component.name not in shared or not isinstance(model, DistributedDataParallel):
        return {}
    names = {name for name, _ in component.inner.named_buffers()} | set(model.parameters_to_ignore)
    return {name: tensor for name, tensor in component.state().items() if name in names} if names else {}


def same_memory_kind(one: torch.Tensor, record: Mapping[str, Any]) -> bool:
    """Can a saved tensor be copied straight into this one?"""
    return (
        list(one.shape) == list(record["shape"])
        and str(one.dtype).removeprefix("torch.") == record["dtype"]
        and one.layout is torch.strided
        and all(stride or length < 2 for length, stride in zip(one.shape, one.stride(), strict=True))
    )
