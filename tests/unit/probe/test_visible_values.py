"""A value that is set is visible in the param groups, and the script's own values stay exact underneath.

The oracle is plain torch: a loop that writes the set value before each step and the script's own back after
it. A run under the probe must end with the same parameters and the same schedule, bit for bit.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as sched
from torch.optim import swa_utils

import torchloom as loom
from torchloom.core.config.box_codec import pack_schedule
from torchloom.data import live
from torchloom.errors import UsageError
from torchloom.model.transaction.config import Entry
from torchloom.probe import session as sessions
from torchloom.probe.box import OwnBox
from torchloom.probe.session import Session
from torchloom.probe.steering import declared
from torchloom.wire.blackbox import SCHEDULE, SIZE, View

STEPS, SET, OWN = 40, 7, 28
HELD = 0.0625
OWN_WORD = {"own": True}

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: sched.LambdaLR(o, lambda n: 0.97**n),
    "LambdaLR that stays at 1": lambda o: sched.LambdaLR(o, lambda n: 1.0),
    "MultiplicativeLR": lambda o: sched.MultiplicativeLR(o, lambda n: 0.97),
    "StepLR": lambda o: sched.StepLR(o, 4, 0.7),
    "StepLR that fires long after the change": lambda o: sched.StepLR(o, 20, 0.3),
    "MultiStepLR": lambda o: sched.MultiStepLR(o, [3, 18, 34], 0.5),
    "ConstantLR": lambda o: sched.ConstantLR(o, 0.5, 15),
    "LinearLR": lambda o: sched.LinearLR(o, 0.1, total_iters=20),
    "ExponentialLR": lambda o: sched.ExponentialLR(o, 0.95),
    "PolynomialLR": lambda o: sched.PolynomialLR(o, 35, 2.0),
    "CosineAnnealingLR": lambda o: sched.CosineAnnealingLR(o, 12),
    "CosineAnnealingWarmRestarts": lambda o: sched.CosineAnnealingWarmRestarts(o, 9),
    "ReduceLROnPlateau": lambda o: sched.ReduceLROnPlateau(o, factor=0.5, patience=8),
    "CyclicLR": lambda o: sched.CyclicLR(o, 0.01, 0.2, step_size_up=6),
    "OneCycleLR": lambda o: sched.OneCycleLR(o, 0.2, total_steps=60),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=0.05, anneal_epochs=10),
    "SequentialLR": lambda o: sched.SequentialLR(
        o, [sched.ConstantLR(o, 0.1, 5), sched.ExponentialLR(o, 0.9)], [15]
    ),
    "ChainedScheduler": lambda o: sched.ChainedScheduler(
        [sched.StepLR(o, 15, 0.5), sched.ConstantLR(o, 0.5, 22)], optimizer=o
    ),
}
OPTIMIZERS: dict[str, Callable[[list[Any]], Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), foreach=False),
    "fused with a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), fused=True),
    "two groups": lambda p: torch.optim.SGD([{"params": p[:1]}, {"params": p[1:], "lr": 0.02}], lr=0.1),
}


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(declared.registry, "by_name", {})  # other tests have declared things
    for name, nothing in (("_completed", None), ("_loader", None), ("_things", {}), ("_listeners", [])):
        monkeypatch.setattr(live, name, nothing)
    made = Session(OwnBox(View(memoryview(bytearray(SIZE))), 0))
    made.steps.install(
        importlib.import_module("torch.optim.optimizer"), torch.compiler.is_compiling, made.guard
    )
    monkeypatch.setattr(sessions, "current", made)
    yield made
    made.steps.remove()
    assert made.guard.errors == []


class Training:
    """A small model and its loop. `seen` is what a script would log after each step."""

    def __init__(self, optimizer: str = "SGD", schedule: str | None = None) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Linear(4, 3)
        self.optimizer = OPTIMIZERS[optimizer](list(self.model.parameters()))
        self.scheduler = SCHEDULES[schedule](self.optimizer) if schedule else None
        self.seen: list[float] = []
        self.asked: list[float] = []
        self.scheduled: list[list[float]] = []
        self.by_hand: Callable[[int], None] = lambda n: None

    def step(self, n: int) -> None:
        self.by_hand(n)
        self.optimizer.zero_grad()
        self.model(torch.full((2, 4), 0.1 * (n % 5))).square().sum().backward()
        self.optimizer.step()
        self.seen.append(float(self.optimizer.param_groups[0]["lr"]))
        self.asked.append(loom.in_force(self.optimizer))
        if isinstance(self.scheduler, sched.ReduceLROnPlateau):
            self.scheduler.step(1.0)
        elif self.scheduler is not None:
            self.scheduler.step()
        if self.scheduler is not None:
            self.scheduled.append([float(lr) for lr in self.scheduler.get_last_lr()])

    def bits(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]

    def lrs(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]


def plain_run(first: int, last: int, make: Callable[[], Training]) -> Training:
    """Without the probe: from step `first` to before `last` every step uses HELD, by hooks of this test."""
    training = make()
    own: list[Any] = []
    now = [0]

    def put(*_: Any) -> None:
        if first <= now[0] < last:
            for group in training.optimizer.param_groups:
                own.append(copy.deepcopy(group["lr"]))
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(HELD)
                else:
                    group["lr"] = HELD

    def back(*_: Any) -> None:
        for group, lr in zip(training.optimizer.param_groups, own, strict=False):
            if isinstance(lr, torch.Tensor):
                group["lr"].copy_(lr)
            else:
                group["lr"] = lr
        own.clear()

    training.optimizer.register_step_pre_hook(put)
    training.optimizer.register_step_post_hook(back)
    for n in range(1, STEPS + 1):
        now[0] = n
        training.step(n)
    return training


def steered_run(session: Session, first: int, last: int, make: Callable[[], Training]) -> Training:
    training = make()
    for n in range(1, STEPS + 1):
        if n == first == 1:  # what a generation is given at its start
            schedule = pack_schedule((Entry(1, 0, {"lr": HELD}),))
            session.view.write_blob(SCHEDULE, schedule.encode())
        elif n == first:
            session.steps.overrides.replace({"lr": HELD})
        if n == last:
            session.steps.overrides.replace({"lr": OWN_WORD})
        training.step(n)
    return training


def test_a_loader_that_the_script_has_dropped_ends_no_worker(session: Session) -> None:
    """A generation begins with the values that hold, and what the script began with counts for the others."""
    loader = loom.ElasticLoader(list(range(8)), 4)
    training = Training()
    training.step(1)
    registered = declared.registry.by_name["batch_size"]
    del loader
    assert registered.value is None and registered.initial == 4
    session._config.begin(1)
    with pytest.raises(UsageError, match="the loader that batch_size was of is gone"):
        registered.check(2)
    training.step(2)


def assert_identical(one: Training, other: Training) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one.bits(), other.bits(), strict=True))
    assert one.scheduled == other.scheduled
    assert one.lrs() == other.lrs()


def without(session: Session, run: Callable[[], Training]) -> Training:
    """Run it with the probe's hooks off."""
    session.guard.off = True
    try:
        return run()
    finally:
        session.guard.off = False


def test_every_scheduler_of_torch_is_tried() -> None:
    found = {
        name
        for module in (sched, swa_utils)
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, sched.LRScheduler) and not name.startswith("_")
    }
    assert found - {"LRScheduler"} == {name.split()[0] for name in SCHEDULES}


@pytest.mark.parametrize("first", [1, 2, SET])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_is_exact_beneath_a_held_value(session: Session, schedule: str, first: int) -> None:
    """The steps use what was set, the schedule continues with its own, and `own` gives that back."""
    training = steered_run(session, first, OWN, lambda: Training("SGD", schedule))
    oracle = without(session, lambda: plain_run(first, OWN, lambda: Training("SGD", schedule)))
    assert_identical(training, oracle)
    assert training.asked[first - 1 : OWN - 1] == [HELD] * (OWN - first)


@pytest.mark.parametrize("schedule", [None, "StepLR that fires long after the change", "CosineAnnealingLR"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_kind_of_optimizer(session: Session, optimizer: str, schedule: str | None) -> None:
    training = steered_run(session, SET, OWN, lambda: Training(optimizer, schedule))
    oracle = without(session, lambda: plain_run(SET, OWN, lambda: Training(optimizer, schedule)))
    assert_identical(training, oracle)
    assert training.asked[SET - 1 : OWN - 1] == [HELD] * (OWN - SET)


def test_a_value_that_nothing_writes_is_visible_from_its_first_step_on(session: Session) -> None:
    training = steered_run(session, SET, OWN, Training)
    assert training.seen == [0.1] * (SET - 1) + [HELD] * (OWN - SET) + [0.1] * (STEPS - OWN + 1)


def test_a_value_held_from_the_start_is_visible_after_one_step(session: Session) -> None:
    training = steered_run(session, 1, OWN, Training)
    assert training.seen[:OWN] == [0.1] + [HELD] * (OWN - 2) + [0.1]


def test_a_late_scheduler_hides_it_only_once_it_fires(session: Session) -> None:
    schedule = "StepLR that fires long after the change"
    training = steered_run(session, SET, OWN, lambda: Training("SGD", schedule))
    assert training.seen[SET - 1 : 20] == [HELD] * (20 - SET + 1)
    assert training.seen[20 : OWN - 1] == [pytest.approx(0.03)] * (OWN - 1 - 20)


def test_a_scheduler_made_later_starts_from_the_scripts_own(session: Session) -> None:
    training = Training()
    for n in range(1, 4):
        training.step(n)
    session.steps.overrides.replace({"lr": HELD})
    training.step(4)
    assert training.seen[-1] == HELD
    training.scheduler = sched.ExponentialLR(training.optimizer, 0.5)
    assert training.scheduler.base_lrs == [0.1]
    training.step(5)
    assert training.scheduled == [[0.05]]


def test_a_scheduler_class_of_the_script(session: Session) -> None:
    class Halving(sched.LRScheduler):
        def get_lr(self) -> list[float]:
            return [
                group["lr"] * (0.5 if self.last_epoch == 10 else 1.0) for group in self.optimizer.param_groups
            ]

        def step(self, epoch: int | None = None) -> None:
            super().step(epoch)

    def make() -> Training:
        training = Training()
        training.scheduler = Halving(training.optimizer)
        return training

    training = steered_run(session, SET, OWN, make)
    assert_identical(training, without(session, lambda: plain_run(SET, OWN, make)))


# -- writers by hand -------------------------------------------------------------------------------


def writes(value: Callable[[int, Any], float]) -> Callable[[], Training]:
    def make() -> Training:
        training = Training()

        def write(n: int) -> None:
            group = training.optimizer.param_groups[0]
            group["lr"] = value(n, group)

        training.by_hand = write
        return training

    return make


@pytest.mark.parametrize(
    "make",
    [
        writes(lambda n, group: 0.1 * 0.98**n),  # as nanoGPT does
        writes(lambda n, group: group["lr"] * 0.98),
        writes(lambda n, group: 0.1 if n < 20 else 0.05),
    ],
    ids=["computed", "multiplied", "late"],
)
@pytest.mark.parametrize("first", [1, 3, SET])
def test_a_script_that_writes_by_hand(session: Session, make: Callable[[], Training], first: int) -> None:
    training = steered_run(session, first, OWN, make)
    assert_identical(training, without(session, lambda: plain_run(first, OWN, make)))


def test_a_write_by_hand_is_the_scripts_own_from_then_on(session: Session) -> None:
    training = Training()
    for n in range(1, 4):
        training.step(n)
    session.steps.overrides.replace({"lr": HELD})
    training.step(4)
    training.optimizer.param_groups[0]["lr"] = 0.75
    training.step(5)
    training.step(6)
    assert training.seen[3:] == [HELD, 0.75, 0.75] and training.asked[3:] == [HELD] * 3
    session.steps.overrides.replace({"lr": OWN_WORD})
    training.step(7)
    assert training.lrs() == [0.75]


# -- states ----------------------------------------------------------------------------------------


def test_the_scripts_own_state_dict_has_the_value_in_force(session: Session) -> None:
    training = Training()
    training.step(1)
    session.steps.overrides.replace({"lr": HELD})
    training.step(2)
    buffer = io.BytesIO()
    torch.save(training.optimizer.state_dict(), buffer)
    buffer.seek(0)
    assert training.optimizer.state_dict()["param_groups"][0]["lr"] == HELD
    training.optimizer.load_state_dict(torch.load(buffer))
    training.step(3)
    assert training.seen[-1] == HELD
    session.steps.overrides.replace({"lr": OWN_WORD})
    assert training.lrs() == [0.1], "loading it again is no write of the script's"


def test_a_checkpoint_has_the_scripts_own_value_and_gives_it_back(session: Session, tmp_path: Any) -> None:
    training = Training()
    training.step(1)
    session.steps.overrides.replace({"lr": HELD})
    checkpoint = loom.Checkpoint(model=training.model, optimizer=training.optimizer, dir=tmp_path, every=1000)
    for n in (2, 3):
        training.step(n)
        checkpoint.step(n)
    checkpoint.save(3, wait=True)
    saved = training.bits()
    assert training.lrs() == [HELD]
    for n in (4, 5):
        training.step(n)
        checkpoint.step(n)
    checkpoint.roll_back(3)
    assert all(torch.equal(a, b) for a, b in zip(training.bits(), saved, strict=True))
    assert training.lrs() == [HELD], "the value is still set"
    session.steps.overrides.replace({"lr": OWN_WORD})
    training.step(4)
    assert training.lrs() == [0.1]
    again = Training()
    loom.Checkpoint(model=again.model, optimizer=again.optimizer, dir=tmp_path).restore(3)
    assert again.lrs() == [0.1]


def test_a_scaled_value_is_never_left_behind(session: Session) -> None:
    """A script that saved it and loaded it again would scale it twice."""
    training = Training()
    training.step(1)
    session.steps.overrides.replace({"lr": {"scale": 0.5}})
    training.step(2)
    assert training.seen[-1] == 0.1 and training.asked[-1] == 0.05


def test_betas_and_groups_that_come_later(session: Session) -> None:
    training = Training("foreach")
    training.step(1)
    session.steps.overrides.replace({"betas": [0.5, 0.6], "lr@1": 0.5})
    training.step(2)
    extra = torch.nn.Parameter(torch.ones(1))
    training.optimizer.add_param_group({"params": [extra], "lr": 0.25})
    training.step(3)
    training.step(4)
    groups = training.optimizer.param_groups
    assert [group["betas"] for group in groups] == [(0.5, 0.6)] * 2
    assert [group["lr"] for group in groups] == [0.1, 0.5]
    session.steps.overrides.replace({"betas": OWN_WORD, "lr@1": OWN_WORD})
    assert [group["betas"] for group in groups] == [(0.9, 0.999)] * 2
    assert [group["lr"] for group in groups] == [0.1, 0.25]


def test_without_torchloom_around_it_the_scripts_own_value_is_in_force() -> None:
    assert loom.in_force(Training().optimizer) == 0.1
    assert loom.in_force(Training("tensor").optimizer) == pytest.approx(0.1)
    assert loom.in_force(Training("foreach").optimizer, "betas") == (0.9, 0.999)
