"""What holds in a worker after a start and after going back: the same as the job's own schedule says."""

from __future__ import annotations

from typing import Any

import pytest

from torchloom.core.config import schedule as schedules
from torchloom.core.config.box_codec import pack_schedule
from torchloom.model.transaction.config import Entry
from torchloom.probe.steering.annotations import form_of
from torchloom.probe.steering.config import Config
from torchloom.probe.steering.declared import Declared, Registry
from torchloom.probe.steering.overrides import Overrides
from torchloom.wire.blackbox import SCHEDULE, SIZE, View

HISTORY = (
    Entry(1, 10, {"lr": 0.1}),
    Entry(2, 20, {"dropout": 0.2}),
    Entry(3, 21, {"lr": 0.3, "dropout": 0.3}),
    Entry(5, 30, {"dropout": 0.5, "max_steps": 90}),
)


class Worker:
    def __init__(self, made: int | None, *declared: str) -> None:
        view = View(memoryview(bytearray(SIZE)))
        view.write_blob(SCHEDULE, pack_schedule(HISTORY).encode())
        self.calls: list[float] = []
        self.registry = Registry()
        self.overrides = Overrides()
        self.config = Config(view, self.overrides, self.registry, list)
        for name in declared:
            self.declare(name)
        self.config.begin(made)

    def declare(self, name: str) -> None:
        self.registry.add(Declared(form_of(name, float), self.calls.append, 0.0))

    def holds(self) -> dict[str, Any]:
        own = {name: d.value for name, d in self.registry.by_name.items() if d.value != 0.0}
        limit = {} if self.config.max_steps is None else {"max_steps": self.config.max_steps}
        return {**self.overrides.words, **own, **limit}


@pytest.mark.parametrize("made", [0, 9, 10, 19, 20, 21, 29, 30, 99])
def test_every_step_after_a_start_is_made_with_what_the_schedule_says(made: int) -> None:
    worker = Worker(made, "dropout")
    assert worker.holds() == schedules.merge(schedules.in_force(HISTORY, made)), "before the first forward"
    for step in range(made + 1, 35):
        worker.config.follow(step)
        assert worker.holds() == schedules.merge(schedules.in_force(HISTORY, step)), step
        assert worker.config.version == schedules.version_at(HISTORY, step)


@pytest.mark.parametrize("choice", ["", "revert", "keep"])
@pytest.mark.parametrize("made", [5, 19, 20, 25])
def test_going_back_does_what_the_job_records(made: int, choice: str) -> None:
    worker = Worker(40, "dropout")
    before = worker.config.snapshot()
    today = worker.holds()
    worker.config.rebase(before, made, choice, today=40)
    recorded = HISTORY
    if choice:
        recorded = schedules.roll_back(HISTORY, made + 1, choice, today=40)  # type: ignore[arg-type]
    if choice == "keep":
        assert worker.holds() == today
    for step in range(made + 1, 45):
        worker.config.follow(step)
        assert worker.holds() == schedules.merge(schedules.in_force(recorded, step)), step
    worker.config.undo(before)
    assert worker.holds() == today


def test_a_setting_that_is_declared_late_gets_its_value_then() -> None:
    worker = Worker(25)
    assert worker.config.next_step == 30
    worker.declare("dropout")
    assert worker.config.next_step == 0
    worker.config.follow(26)
    assert worker.calls == [0.3]
    assert worker.config.next_step == 30


def test_without_a_training_step_the_newest_values_hold() -> None:
    worker = Worker(None, "dropout")
    assert worker.holds() == {"lr": 0.3, "dropout": 0.5, "max_steps": 90}
    assert worker.config.next_step is None
