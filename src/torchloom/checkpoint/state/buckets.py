"""DDP's gradient buckets, brought back as they were: without them a resumed run is not bit-identical.

DistributedDataParallel sums gradients in buckets. It makes them in the order of the parameters, and again
after the first backward, in the order in which the gradients came. A resumed run would therefore take its
first step with other buckets than the undisturbed run had; from three ranks on, the sums are then made in
another order and differ in the last bits.

Owns the remedy: the order is read from the running reducer and kept with the checkpoint; on restore the
reducer is led through one backward in which each parameter gets a gradient of zeros in exactly that order,
and asked to rebuild. It costs what one step's communication costs and needs nothing from the script. It must
come before the state is restored, because hooks of the user on gradients (an optimizer in the backward
pass, say) run too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


def rebuilds(model: Any) -> bool:
    """Does this DDP make its buckets anew after the first backward, in a way we can lead?

    With find_unused_parameters it never does. With static_graph the first backward also counts uses of
    parameters, which must be those of the real graph.
    """
    return not model.find_unused_parameters and not getattr(model, "static_graph", False)


def arrival_order(model: DistributedDataParallel) -> list[int] | None:
    """The order of gradients that the buckets were made from; None if they are still the first ones.

    All ranks must call it at the same step: buckets that are due are made now instead of at the next
    forward, and making them is a collective operation.
    """
    if not rebuilds(model):
        return None
    just_made = model.reducer._rebuild_buckets()
    known = _from_log(model)
    if known is not None:
        return known
    if _parameters(model)[0][0].device.type != "cpu":
        return None  # asking the reducer itself takes as much memory as the gradients
    numbers = {id(parameter): n for n, parameter in enumerate(_parameters(model)[0])}
    made = [
        [numbers[id(parameter)] for parameter in bucket.parameters()]
        for bucket in model.reducer._get_zeros_like_grad_buckets()
    ]
    if not just_made and all(bucket == sorted(bucket) for bucket in made):
        return None  # in the order of the parameters: those from before the first backward
    return [number for bucket in made for number in bucket]


def warm(model: DistributedDataParallel, order: list[int]) -> bool:
    """Make the buckets that `order` leads to, collectively. False if the order is not of this model."""
    parameters, sparse = _parameters(model)
    if not rebuilds(model) or sorted(order) != list(range(len(parameters))):
        return False
    kept = [parameter.grad for parameter in parameters]
    chain = torch.zeros((), requires_grad=True)
    for n in reversed(order):
        chain = _Link.apply(chain, parameters[n], sparse[n])
    with torch.enable_grad():
        model.reducer.prepare_for_forward()
        model.reducer.prepare_for_backward([])
        chain.backward()
    model.reducer._rebuild_buckets()
    for parameter, grad in zip(parameters, kept, strict=True):
        parameter.grad = grad
    return True


class _Link(torch.autograd.Function):
    """Passes its input on; on the way back its parameter gets zeros, before the link after it is reached."""

    @staticmethod
    def forward(ctx: Any, passed: torch.Tensor, parameter: torch.Tensor, sparse: bool) -> torch.Tensor:
        ctx.parameter, ctx.sparse = parameter, sparse
        return passed.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        zeros = torch.zeros_like(ctx.parameter)
        return grads[0], zeros.to_sparse(1) if ctx.sparse else zeros, None


def _parameters(model: DistributedDataParallel) -> tuple[list[torch.Tensor], list[bool]]:
    """As the reducer numbers them."""
    found = model._build_params_for_reducer()
    return list(found[0]), list(found[1])


def _from_log(model: DistributedDataParallel) -> list[int] | None:
    """From DDP's own record, which it brings up to date some steps after the buckets were made."""
    text = model._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    try:
        order = [int(number) for number in str(text).replace(",", " ").split()]
    except ValueError:
        return None
    return order if order and len(order) == len(_parameters(model)[0]) else None
