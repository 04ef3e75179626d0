"""What a worker leaves in its black box for detectors (its role, a NaN nobody saw), and its deadline."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from torchloom.agent.observe.logged import broken
from torchloom.model.windows import Broken
from torchloom.probe.box import OwnBox
from torchloom.probe.observe import steps as module
from torchloom.probe.session import Session
from torchloom.wire.blackbox import METRICS, ROLE, SIZE, View


class Optimizer:
    param_groups: tuple[dict[str, Any], ...] = ()


@pytest.fixture
def view() -> View:
    return View(memoryview(bytearray(SIZE)))


def told(view: View) -> Any:
    return json.loads(view.read_blob(METRICS) or b"{}")


def test_the_first_nan_of_a_run_stays_when_the_value_is_fine_again(view: View) -> None:
    session = Session(OwnBox(view, 0))
    session.log({"loss": 1.0})
    assert broken(told(view)) is None
    session.steps.completed = 7
    session.log({"loss": float("nan"), "accuracy": float("nan")})
    session.steps.completed = 8
    session.log({"loss": float("nan")})
    session.log({"loss": 0.5})
    session._metrics.write(2**62)
    assert told(view)["values"]["loss"] == 0.5
    assert broken(told(view)) == Broken(1, 7, "loss", "NaN")
    session.steps.completed = 30
    session.log({"loss": float("inf")})
    assert broken(told(view)) == Broken(2, 30, "loss", "Infinity")


def test_other_metrics_may_be_nan_for_good_reasons(view: View) -> None:
    Session(OwnBox(view, 0)).log({"accuracy": float("nan")})
    assert broken(told(view)) is None


@pytest.mark.parametrize("found", [None, {}, {"broken": [1, 2]}, {"broken": ["x", 1, "a", "b"]}, []])
def test_what_the_script_may_have_written_there_harms_nobody(found: Any) -> None:
    assert broken(found) is None


def test_a_role_is_told_by_the_script_or_by_the_environment(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_ROLE", "stage0")
    session = Session(OwnBox(view, 0))
    assert view.read_blob(ROLE) == b"stage0"
    session.tell_role("stage1")
    assert view.read_blob(ROLE) == b"stage1"
    session.tell_role("x" * 10_000)
    assert len(view.read_blob(ROLE) or b"") == ROLE.capacity


def test_a_worker_past_its_hosts_deadline_makes_no_further_step(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(module.os, "kill", lambda pid, number: killed.append(number))
    session, optimizer = Session(OwnBox(view, 0)), Optimizer()
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    for limit_ns, until_ns, ends in ((0, 1, 0), (10**9, now_ns + 10**12, 0), (10**9, now_ns - 1, 1)):
        view.set_fence(limit_ns, until_ns)
        args = (optimizer,)
        session.steps.before(optimizer, args)
        session.steps.after(optimizer, args)
        assert len(killed) == ends
