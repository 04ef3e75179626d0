"""A value that was set before a restart: from the first step on it is in force and, where nothing in the
script writes it, visible in the param groups.

The oracle is the same training without a restart, under the probe as well: a run that was restored from a
checkpoint must end with the same parameters, schedule and param groups, bit for bit. So what the probe has
learnt about the script's writes is saved and restored with the checkpoint.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as sched

import torchloom as loom
from torchloom.core.config.box_codec import pack_schedule, unwritten
from torchloom.model.transaction.config import Entry
from torchloom.probe import session as sessions
from torchloom.probe.box import OwnBox
from torchloom.probe.session import Session
from torchloom.wire.blackbox import SCHEDULE, SETTINGS, SIZE, View

STEPS, SET = 16, 5
HELD = 0.0625
HAND = Callable[[int, dict[str, Any]], None]


def multiply_at(*steps: int) -> HAND:
    def write(n: int, group: dict[str, Any]) -> None:
        if n in steps:
            group["lr"] *= 0.5

    return write


def compute(n: int, group: dict[str, Any]) -> None:
    group["lr"] = 0.1 * 0.9**n


def constant(n: int, group: dict[str, Any]) -> None:
    group["lr"] = 0.1


def by_hand(write: HAND) -> Callable[[Training], None]:
    def prepare(training: Training) -> None:
        training.write = write

    return prepare


def by(make: Callable[[Any], Any]) -> Callable[[Training], None]:
    def prepare(training: Training) -> None:
        training.scheduler = make(training.optimizer)

    return prepare


SCRIPTS: dict[str, Callable[[Training], None]] = {
    "writes nothing": lambda training: None,
    "computes": by_hand(compute),
    "writes the same": by_hand(constant),
    "multiplies in every step": by_hand(multiply_at(*range(1, STEPS + 1))),
    "multiplies before the change": by_hand(multiply_at(2)),
    "multiplies before and after": by_hand(multiply_at(3, 14)),
    "multiplies after the change": by_hand(multiply_at(9, 12, 14)),
    "multiplies late": by_hand(multiply_at(14)),
    "StepLR": by(lambda o: sched.StepLR(o, 4, 0.5)),
    "late StepLR": by(lambda o: sched.StepLR(o, 13, 0.5)),
    "MultiplicativeLR": by(lambda o: sched.MultiplicativeLR(o, lambda n: 0.97)),
    "LambdaLR that stays at 1": by(lambda o: sched.LambdaLR(o, lambda n: 1.0)),
    "CosineAnnealingLR": by(lambda o: sched.CosineAnnealingLR(o, 6)),
    "SequentialLR": by(
        lambda o: sched.SequentialLR(o, [sched.ConstantLR(o, 0.5, 3), sched.ExponentialLR(o, 0.9)], [8])
    ),
}


class Training:
    """A script with a checkpoint. `seen` is what it logs after each step."""

    def __init__(self, prepare: Callable[[Training], None], path: Path) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Linear(4, 3)
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler: Any = None
        self.write: HAND | None = None
        self.after_restore: Callable[[dict[str, Any]], None] = lambda group: None
        prepare(self)
        parts = {} if self.scheduler is None else {"scheduler": self.scheduler}
        self.checkpoint = loom.Checkpoint(
            model=self.model, optimizer=self.optimizer, dir=path, every=1000, **parts
        )
        self.seen: dict[int, float] = {}
        self.asked: dict[int, float] = {}

    def train(self, last: int, after: int | None = None, save: tuple[int, ...] = ()) -> None:
        """From the step after `after` to `last`; the newest state unless it says which."""
        first = self.checkpoint.restore(after) + 1
        self.after_restore(self.optimizer.param_groups[0])
        for n in range(first, last + 1):
            if self.write is not None:
                self.write(n, self.optimizer.param_groups[0])
            self.optimizer.zero_grad()
            self.model(torch.full((2, 4), 0.1 * (n % 5))).square().sum().backward()
            self.optimizer.step()
            self.seen[n] = float(self.optimizer.param_groups[0]["lr"])
            self.asked[n] = loom.in_force(self.optimizer)
            if self.scheduler is not None:
                self.scheduler.step()
            self.checkpoint.step(n)
            if n in save:
                self.checkpoint.save(n, wait=True)

    def end(self) -> list[Any]:
        values = [p.detach().tolist() for p in self.model.parameters()]
        return [*values, self.optimizer.param_groups[0]["lr"], self.own()]

    def own(self) -> float:
        """What the script gets back when nothing is set any more."""
        assert sessions.current is not None
        sessions.current.steps.overrides.replace({"lr": {"own": True}})
        return float(self.optimizer.param_groups[0]["lr"])


@contextmanager
def process(monkeypatch: pytest.MonkeyPatch, *entries: Entry) -> Iterator[Session]:
    """A probe as in a new worker process that was given this schedule."""
    made = Session(OwnBox(View(memoryview(bytearray(SIZE))), 0))
    made.view.write_blob(SCHEDULE, pack_schedule(entries).encode())
    optim = importlib.import_module("torch.optim.optimizer")
    made.steps.install(optim, torch.compiler.is_compiling, made.guard)
    with monkeypatch.context() as patched:
        patched.setattr(sessions, "current", made)
        try:
            yield made
        finally:
            made.steps.remove()
    assert made.guard.errors == []


def change(step: int = SET) -> Entry:
    return Entry(1, step, {"lr": HELD})


SAVED = (1, SET - 1, SET, 8, 13)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_restored_training_is_as_if_it_had_never_been_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    with process(monkeypatch, change()):
        whole = Training(SCRIPTS[script], tmp_path)
        whole.train(STEPS, save=SAVED)
        end = whole.end()
    for saved in SAVED:
        with process(monkeypatch, change()):
            after = Training(SCRIPTS[script], tmp_path)
            after.train(STEPS, after=saved)
            assert after.end() == end, saved
        if script == "writes the same":  # it shows with the second step that this is a write
            after.seen.pop(saved + 1)
        assert after.seen == {n: whole.seen[n] for n in after.seen}, saved
        assert after.asked == {n: whole.asked[n] for n in after.asked}, saved


def resumed(
    monkeypatch: pytest.MonkeyPatch, path: Path, act: Callable[[dict[str, Any]], None]
) -> dict[int, float]:
    """What a script logs after a restart that does `act` once it has restored."""
    with process(monkeypatch, change()):
        Training(SCRIPTS["writes nothing"], path).train(8, save=(8,))
    with process(monkeypatch, change()):
        after = Training(SCRIPTS["writes nothing"], path)
        after.after_restore = act
        after.train(10)
    assert after.asked == {9: HELD, 10: HELD}
    return after.seen


def test_it_is_visible_before_the_first_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there: list[float] = []
    assert resumed(monkeypatch, tmp_path, lambda group: there.append(group["lr"])) == {9: HELD, 10: HELD}
    assert there == [HELD]


def test_a_script_that_sets_its_own_value_again_after_the_restore(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`group["lr"] = args.lr`: it writes what it has there anyway, so it is no write to respect."""
    assert resumed(monkeypatch, tmp_path, lambda group: group.update(lr=0.1)) == {9: HELD, 10: HELD}


def test_a_script_that_sets_another_value_after_the_restore(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert resumed(monkeypatch, tmp_path, lambda group: group.update(lr=0.3)) == {9: 0.3, 10: 0.3}


def test_a_rollback_is_like_a_restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the script wrote after the state that is rolled back to was never written."""
    with process(monkeypatch, change()):
        training = Training(SCRIPTS["multiplies late"], tmp_path)
        training.train(13, save=(13,))
        lr = training.optimizer.param_groups[0]
        for _ in range(2):
            assert lr["lr"] == HELD
            lr["lr"] *= 0.5
            training.optimizer.step()
            assert lr["lr"] == HELD / 2, "its own from then on"
            training.checkpoint.step(14)
            training.checkpoint.roll_back(13)
            lr = training.optimizer.param_groups[0]
        assert training.own() == 0.1


def test_optimizers_that_step_in_another_order_than_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The number of an optimizer is the order of first steps; the restored one had number 0."""
    other = torch.nn.Linear(1, 1)
    with process(monkeypatch, change()):
        Training(SCRIPTS["writes nothing"], tmp_path).train(8, save=(8,))
    with process(monkeypatch, change()):
        after = Training(SCRIPTS["writes nothing"], tmp_path)
        first = torch.optim.SGD(other.parameters(), lr=0.7)
        after.after_restore = lambda group: first.step()
        after.train(10)
        assert after.seen == {9: HELD, 10: HELD}
        assert after.own() == 0.1 and first.param_groups[0]["lr"] == 0.7


def test_betas_and_several_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def make(training: Training) -> None:
        weight, bias = training.model.parameters()
        training.optimizer = torch.optim.AdamW([{"params": [weight]}, {"params": [bias], "lr": 0.02}], lr=0.1)
        training.write = lambda n, group: group.update(betas=(0.9, 0.99 - n / 1000))

    entry = Entry(1, SET, {"betas": [0.5, 0.6], "lr": HELD})
    with process(monkeypatch, entry):
        Training(make, tmp_path).train(8, save=(8,))
    with process(monkeypatch, entry):
        after = Training(make, tmp_path)
        after.train(9)
        groups = after.optimizer.param_groups
        assert [group["lr"] for group in groups] == [HELD, HELD]
        assert [group["betas"] for group in groups] == [(0.9, 0.99 - 9 / 1000), (0.5, 0.6)]


def test_a_restart_without_a_checkpoint_is_told_what_the_worker_before_had_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = Entry(1, 0, {"lr": HELD})
    for script, first in (("writes nothing", 0.1), ("multiplies in every step", 0.05)):
        with process(monkeypatch, entry) as before:
            Training(SCRIPTS[script], tmp_path / f"{script} 1").train(3)
            before._config.write()
            told = unwritten(before.view.read_blob(SETTINGS) or b"")
        assert told == ("optimizer0.lr@0" if script == "writes nothing" else "")
        with monkeypatch.context() as patched:
            patched.setenv("LOOM_UNWRITTEN", told)
            with process(monkeypatch, entry):
                after = Training(SCRIPTS[script], tmp_path / f"{script} 2")
                after.train(1)
        assert after.asked[1] == HELD
        assert after.seen[1] == (HELD if told else first)


def test_a_step_that_only_makes_the_state_of_an_optimizer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.distributed.checkpoint makes one on loading and on saving. With a held learning rate its weight
    decay would change the parameters, and a wrapped optimizer would count instead of the one around it."""
    from torch.distributed.checkpoint import state_dict as dcp

    monkeypatch.setattr(dcp, "_init_optim_state", dcp._init_optim_state)  # put back at the end
    with process(monkeypatch, Entry(1, 0, {"lr": HELD})) as session:
        session.steps.ignore_initial_steps(dcp)
        model = torch.nn.Linear(4, 3)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        for _ in range(2):
            session.tell_training_step(0)
            dcp._init_optim_state(optimizer)
        assert optimizer.state and session.steps.completed == 0
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        assert session.steps.completed == 1 and loom.in_force(optimizer) == HELD
