"""Nothing of ours raises into the script, and what keeps failing is switched off."""

from __future__ import annotations

import pytest

from torchloom.probe.guard import LIMIT, Guard
from torchloom.probe.steering.stopping import StopAtBoundary


def test_a_failure_is_counted_and_the_entry_switched_off_after_a_few() -> None:
    told: list[int] = []
    calls: list[int] = []
    guard = Guard(told.append)

    def failing(n: int) -> None:
        calls.append(n)
        raise ValueError(f"no {n}")

    entry = guard.wrap(failing, otherwise="nothing")
    assert [entry(n) for n in range(10)] == ["nothing"] * 10
    assert len(calls) == LIMIT
    assert told == list(range(1, LIMIT + 1))
    assert guard.errors[0].endswith("ValueError: no 0")


def test_one_entry_switched_off_leaves_the_others_on() -> None:
    guard = Guard(lambda trips: None)
    bad, good = guard.wrap(lambda: 1 / 0), guard.wrap(lambda: "fine")
    for _ in range(LIMIT + 1):
        bad()
    assert good() == "fine"


@pytest.mark.parametrize("passing", [StopAtBoundary(), KeyboardInterrupt(), SystemExit(3)])
def test_what_is_no_error_passes(passing: BaseException) -> None:
    guard = Guard(lambda trips: None)

    def entry() -> None:
        raise passing

    with pytest.raises(type(passing)):
        guard.wrap(entry)()
    assert guard.trips == 0


def test_an_error_that_cannot_be_shown_and_a_box_that_is_gone_do_no_harm() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def trip(trips: int) -> None:
        raise OSError("gone")

    guard = Guard(trip)

    def entry() -> None:
        raise Silent

    assert guard.wrap(entry)() is None
    assert guard.trips == 1


def test_a_silenced_guard_calls_nothing() -> None:
    guard = Guard(lambda trips: None)
    entry = guard.wrap(lambda: pytest.fail("called"))
    guard.off = True
    entry()


def test_an_optimizer_hook_vanishes_while_dynamo_traces_a_foreign_optimizer() -> None:
    guard = Guard(lambda trips: None)
    seen: list[object] = []
    compiling = True
    hook = guard.optimizer_hook(lambda optimizer, args: seen.append(optimizer), lambda: compiling)
    foreign = object()
    torchs = type("SGD", (), {"__module__": "torch.optim.sgd"})()
    hook(foreign, (), {})
    hook(torchs, (), {})
    compiling = False
    hook(foreign, (), {})
    assert seen == [torchs, foreign]
