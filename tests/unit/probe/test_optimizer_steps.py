"""The count of a script that reports no steps continues where the loaded state of its optimizer was saved."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchloom.core.config.box_codec import pack_schedule
from torchloom.model.transaction.config import Entry
from torchloom.probe.box import OwnBox
from torchloom.probe.observe.optimizer_steps import steps_of_state
from torchloom.probe.session import NEVER_NS, Session
from torchloom.probe.steering.stopping import StopAtBoundary
from torchloom.wire.blackbox import SCHEDULE, SIZE, Progress, View

COUNTING: dict[str, Callable[[Any], Any]] = {
    "AdamW": lambda p: torch.optim.AdamW(p),
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
    "foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
}


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session(OwnBox(View(memoryview(bytearray(SIZE))), 0))
    yield made
    assert made.guard.errors == []


def trained(make: Callable[[Any], Any], steps: int, state: Any = None) -> Any:
    """An optimizer that has made these steps, after loading `state`."""
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = make(parameters)
    if state is not None:
        optimizer.load_state_dict(state)
    for step in range(steps):
        for parameter in parameters[: 1 + step % 2]:  # the second has a gradient in every other step only
            parameter.grad = torch.ones(2)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("kind", COUNTING)
def test_a_loaded_state_says_how_many_steps_it_has_made(kind: str) -> None:
    make = COUNTING[kind]
    assert steps_of_state(trained(make, 0)) == 0
    state = trained(make, 7).state_dict()
    assert steps_of_state(trained(make, 0, state)) == 7


@pytest.mark.parametrize("odd", [None, object(), type("O", (), {"state": {"a": {"step": "many"}}})()])
def test_what_has_no_such_count_has_none(odd: object) -> None:
    assert steps_of_state(odd) == 0
    assert steps_of_state(trained(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 3)) == 0


@pytest.fixture
def resumed(session: Session) -> Iterator[Any]:
    """An optimizer with the loaded state of step 6, seen by the session."""
    state = trained(COUNTING["AdamW"], 6).state_dict()
    optimizer = trained(COUNTING["AdamW"], 0, state)
    session.steps.install(importlib.import_module("torch.optim.optimizer"), lambda: False, session.guard)
    yield optimizer
    session.steps.remove()


def test_the_last_step_is_the_one_a_person_means_also_after_a_resume(session: Session, resumed: Any) -> None:
    session.view.write_blob(SCHEDULE, pack_schedule((Entry(0, 0, {"max_steps": 8}),)).encode())
    for _ in range(2):
        resumed.step()
    with pytest.raises(StopAtBoundary):
        resumed.step()
    assert session.training_step() == 8


def test_a_step_that_the_script_reports_counts_more_than_the_state(session: Session, resumed: Any) -> None:
    session.tell_step(100, None)
    resumed.step()
    assert session.training_step() == 101


def test_a_script_that_reports_its_steps_later_is_believed_then(session: Session, resumed: Any) -> None:
    resumed.step()
    assert session.training_step() == 7
    session.tell_step(1, None)
    session._keep_house(1, 0)
    assert session.training_step() == 1 and session.view.progress(Progress.TRAINING_STEP) == 2


def test_the_last_steps_before_the_end_are_counted(session: Session, resumed: Any) -> None:
    resumed.step()
    session.steps._housekeeping_ns = NEVER_NS  # the rest is made before the next look
    for _ in range(4):
        resumed.step()
    session.end(None)
    made, at = (
        session.view.progress(Progress.TRAINING_STEP) - 1,
        session.view.progress(Progress.TRAINING_STEP_AT),
    )
    assert (made, at) == (11, 5)
