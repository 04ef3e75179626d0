"""When to save: intervals, the cost rule, and one save at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from torchloom.checkpoint.saving.agenda import Agenda
from torchloom.checkpoint.saving.interval import Every, SavePace, parse_every
from torchloom.errors import UsageError


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (100, Every(steps=100)),
        ("100", Every(steps=100)),
        ("10s", Every(seconds=10.0)),
        ("2 min", Every(seconds=120.0)),
        ("auto", Every(share=0.01)),
    ],
)
def test_intervals_are_read(text: object, meant: Every) -> None:
    assert parse_every(text) == meant


@pytest.mark.parametrize("text", [0, -1, True, "", "often", "10 parsecs", None, 1.5])
def test_what_is_no_interval_is_refused(text: object) -> None:
    with pytest.raises(UsageError):
        parse_every(text)


def test_auto_keeps_the_cost_under_its_share() -> None:
    pace = SavePace(parse_every("auto"))
    pace.took_step(0.1)
    pace.took_save(blocked_s=0.04, beside_s=0.06)
    assert pace.steps == 100
    for _ in range(100):
        pace.took_step(0.2)
    assert 50 <= pace.steps <= 51


def steps_saved(agenda: Agenda, steps: int, busy: set[int], memory_on: bool = False) -> list[tuple[int, str]]:
    found = []
    for step in range(1, steps + 1):
        agenda.disk.took_step(0.1)
        agenda.memory.took_step(0.1)
        decision = agenda.decide(step, 0.1, step in busy, memory_on)
        if decision is not None and decision.disk:
            found.append((step, "disk"))
        elif decision is not None and decision.memory:
            found.append((step, "memory"))
            agenda.memory.took_save(0.005, 0.0)
    return found


def new(every: Every) -> Agenda:
    return Agenda(SavePace(every), SavePace(Every(share=0.01)), leads=True, board=None)


def test_every_so_many_steps_means_multiples() -> None:
    assert steps_saved(new(Every(steps=10)), 35, set()) == [(10, "disk"), (20, "disk"), (30, "disk")]


def test_a_save_that_is_due_while_one_is_written_comes_as_soon_as_it_is_done() -> None:
    assert steps_saved(new(Every(steps=10)), 39, set(range(11, 25))) == [
        (10, "disk"),
        (26, "disk"),
        (30, "disk"),
    ]


def test_seconds_become_steps() -> None:
    assert [step for step, _ in steps_saved(new(Every(seconds=1.0)), 35, set())] == [12, 22, 32]


def test_memory_is_saved_in_between_as_often_as_it_may_cost() -> None:
    saved = steps_saved(new(Every(steps=10)), 20, set(), memory_on=True)
    assert [step for step, kind in saved if kind == "disk"] == [10, 20]
    memory = [step for step, kind in saved if kind == "memory"]
    assert len(memory) >= 3 and all(b - a >= 4 for a, b in pairwise(memory[1:]))
