"""The learning rate follows the global batch, and schedulers, failed steps and restores do not notice."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchloom.data import ElasticLoader, ScaledRate
from torchloom.data.rates import factor
from torchloom.errors import UsageError


class Training:
    """A parameter, an optimizer that notes the rates it steps with, and a loader of 10,000 samples."""

    def __init__(self, batch: int = 10, rate: Any = 0.5, **options: Any) -> None:
        self.loader = ElasticLoader(list(range(10_000)), batch, rank=0, world=1)
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate)
        self.rate = ScaledRate(self.optimizer, self.loader, **options)
        self.used: list[float] = []
        self.optimizer.register_step_pre_hook(lambda *_: self.used.append(float(self.group["lr"])))

    @property
    def group(self) -> dict[str, Any]:
        found: dict[str, Any] = self.optimizer.param_groups[0]
        return found

    def run(self, steps: int, changes: dict[int, int] | None = None) -> list[float]:
        del self.used[:]
        for step, _ in enumerate(self.loader, start=1):
            if changes and step in changes:
                self.loader.batch.set(changes[step])
            self.group["params"][0].grad = torch.ones(1)
            self.optimizer.step()
            if step == steps:
                break
        return self.used


def test_the_rules() -> None:
    assert [factor(rule, 40, 10) for rule in ("none", "linear", "sqrt")] == [1.0, 4.0, 2.0]
    with pytest.raises(UsageError, match="no rule"):
        Training(rule="cubic")
    with pytest.raises(UsageError, match="warm-up"):
        Training(warmup=-1)


def test_the_batch_in_hand_keeps_the_rate_of_its_size() -> None:
    training = Training(rule="linear")
    assert training.run(4, {2: 20}) == [0.5, 0.5, 1.0, 1.0]
    assert training.group["lr"] == 0.5, "the script's own is back after each step"
    assert Training(rule="sqrt").run(3, {1: 40}) == [0.5, 1.0, 1.0]
    assert Training(rule="none").run(3, {1: 40}) == [0.5, 0.5, 0.5]


def test_a_rate_grows_by_and_by_and_falls_at_once() -> None:
    training = Training(rule="linear", warmup=4)
    assert training.run(7, {1: 20}) == pytest.approx([0.5, 0.625, 0.75, 0.875, 1.0, 1.0, 1.0])
    assert training.run(3, {1: 10}) == [1.0, 0.5, 0.5]
    assert training.run(6, {1: 50, 3: 30}) == pytest.approx([0.5, 1.0, 1.5, 1.5, 1.5, 1.5])


def test_a_scheduler_sees_its_own_rates() -> None:
    training = Training(rule="linear")
    scheduler = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5)
    training.run(1)
    scheduler.step()
    training.loader.batch.set(20)
    assert training.run(2) == [0.5, 0.5]
    scheduler.step()
    assert scheduler.get_last_lr() == [0.125]


def test_a_step_that_fails_leaves_nothing_behind() -> None:
    training = Training(rule="linear", base_batch=5)
    failing = training.optimizer.register_step_pre_hook(lambda *_: (_ for _ in ()).throw(ValueError()))
    with pytest.raises(ValueError):
        training.optimizer.step()
    failing.remove()
    assert training.run(2) == [1.0, 1.0] and training.group["lr"] == 0.5


def test_a_rate_that_is_a_tensor_stays_the_same_tensor() -> None:
    training = Training(rate=torch.tensor(0.5), base_batch=5)
    before = training.group["lr"]
    assert training.run(1) == [1.0]
    assert training.group["lr"] is before and float(before) == 0.5


def test_a_restored_warm_up_goes_on() -> None:
    plain = Training(warmup=6)
    expected = plain.run(8, {1: 20})[4:]
    first = Training(warmup=6)
    first.run(4, {1: 20})
    second = Training(batch=20, warmup=6)
    second.rate.load_state_dict(first.rate.state_dict())
    assert second.run(4) == expected and second.rate.state_dict() == plain.rate.state_dict()
    given = Training(batch=20, base_batch=20)
    given.rate.load_state_dict(first.rate.state_dict())
    assert given.run(2) == [0.5, 0.5], "a base batch in the script wins"
