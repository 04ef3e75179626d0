"""One thing of the probe that fails must not take the others with it."""

from __future__ import annotations

import pytest
import torch

from torchloom.probe.box import OwnBox
from torchloom.probe.guard import LIMIT
from torchloom.probe.session import NEVER_NS, Session
from torchloom.wire.blackbox import METRICS, SIZE, Progress, View


@pytest.fixture
def session() -> Session:
    """Not installed: the tests call the hooks themselves."""
    return Session(OwnBox(View(memoryview(bytearray(SIZE))), 0))


def step(session: Session, optimizer: object) -> None:
    args = (optimizer,)
    session.steps.before(optimizer, args)
    session.steps.after(optimizer, args)


def test_param_groups_that_cannot_be_read_do_not_end_the_counting(session: Session) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.param_groups = None  # type: ignore[assignment]
    session.log({"loss": 1.0})
    for n in range(10):
        session.steps._housekeeping_ns = 0
        step(session, optimizer)
        assert session.view.progress(Progress.STEPS) == n + 1
    assert session.view.progress(Progress.GUARD_TRIPS) == LIMIT + 1  # one by whoever looks at the parameters
    assert session.steps._housekeeping_ns < NEVER_NS
    assert session.view.read_blob(METRICS)


def test_housekeeping_takes_a_small_share_of_the_time(session: Session) -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(200)]
    optimizer = torch.optim.AdamW(groups)
    step(session, optimizer)
    began_ns = session.view.progress(Progress.STEP_ENDED_NS)
    assert session.steps._housekeeping_ns - began_ns >= 100_000_000


def test_a_silenced_session_writes_nothing(session: Session) -> None:
    session._silence()
    session.log({"loss": 1.0})
    session.tell_step(3, None)
    session.end(None)
    assert session.view.read_blob(METRICS) == b""
    assert session.view.progress(Progress.TRAINING_STEP) == 0
