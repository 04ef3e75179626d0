"""`ScaledRate`: the learning rate follows the global batch, by a rule.

    rate = loom.ScaledRate(optimizer, loader, "linear", warmup=100)
    ckpt = loom.Checkpoint(model=model, optimizer=optimizer, data=loader, rate=rate)

`none`: the rate stays. `linear`: in proportion to the batch. `sqrt`: with its square root. The script's own
rate is that of the base batch: the one the loader began with, or `base_batch`. With `ElasticLoader` the
global batch does not depend on the number of ranks, so a resize changes no rate; with `ShardedLoader` it
grows and shrinks with them.

The factor is applied when the optimizer steps and taken back after it, so schedulers see their own values.
A batch in hand keeps the rate of its own size when another one is set meanwhile. Owns the factor only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import torch

from torchloom.data.loader_state import whole_number
from torchloom.errors import UsageError

Rule = Literal["none", "linear", "sqrt"]
RULES: dict[str, Callable[[float], float]] = {"none": lambda _: 1.0, "linear": float, "sqrt": math.sqrt}


class Sized(Protocol):
    """A loader, as far as this is concerned."""

    @property
    def batch_in_hand(self) -> int:
        """The global batch that the batch in the loop's hands is one of."""


def factor(rule: str, batch: int, base_batch: int) -> float:
    """What the rate of `base_batch` is multiplied by."""
    return RULES[rule](batch / base_batch)


class ScaledRate:
    """Multiplies the learning rates of one optimizer by what the batch asks for."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        loader: Sized,
        rule: Rule = "linear",
        *,
        warmup: int = 0,
        base_batch: int | None = None,
    ) -> None:
        """warmup: steps over which a rate that grows comes to its new value; a lower one holds at once,
        because a rate too high for its batch does harm."""
        if rule not in RULES:
            raise UsageError(f"{rule!r} is no rule for learning rates", hint="use none, linear or sqrt")
        if warmup < 0 or (base_batch is not None and base_batch < 1):
            raise UsageError("a warm-up of fewer than 0 steps or a base batch below 1 is impossible")
        self._loader, self._rule, self._warmup = loader, rule, warmup
        self._given = base_batch
        self._base = base_batch or loader.batch_in_hand
        self._batch = loader.batch_in_hand
        self._from = self._to = factor(rule, self._batch, self._base)
        self._done = warmup
        self._own: list[tuple[dict[str, Any], Any]] = []
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    @property
    def factor(self) -> float:
        """By which the last step's rate was multiplied, or the next one's before the first."""
        if self._done >= self._warmup:
            return self._to
        return self._from + (self._to - self._from) * self._done / self._warmup

    def state_dict(self) -> dict[str, Any]:
        return {
            "base_batch": self._base,
            "batch": self._batch,
            "from": self._from,
            "to": self._to,
            "done": self._done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where it was. A `base_batch` that the script gives wins over the state's."""
        if self._given is None:
            self._base = max(1, whole_number(state, "base_batch", None))
        self._batch = whole_number(state, "batch", None)
        self._from, self._to = float(state["from"]), float(state["to"])
        self._done = whole_number(state, "done", None)

    def _advance(self) -> float:
        batch = self._loader.batch_in_hand
        wanted = factor(self._rule, batch, self._base)
        if wanted != self._to:
            # From where it is now: a change may come in the middle of a warm-up.
            self._from, self._to = self.factor, wanted
            self._done = 0 if wanted > self._from else self._warmup
        self._batch = batch
        self._done = min(self._warmup, self._done + 1)
        return self.factor

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._give_back()  # a step that raised left its rates
        by = self._advance()
        if by == 1.0:
            return
        for group in optimizer.param_groups:
            rate = group["lr"]
            if isinstance(rate, torch.Tensor):
                self._own.append((group, rate.clone()))
                rate.mul_(by)
            else:
                self._own.append((group, rate))
                group["lr"] = rate * by

    def _after(self, *_: Any) -> None:
        self._give_back()

    def _give_back(self) -> None:
        for group, rate in self._own:
            if isinstance(rate, torch.Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate
        self._own.clear()
