"""Phases lie over each other and give back what was before."""

from __future__ import annotations

from torchloom.probe.observe.phases import Phases
from torchloom.wire.blackbox import PHASE_NAME, SIZE, Progress, View, WorkerPhase


def view() -> View:
    return View(memoryview(bytearray(SIZE)))


def shown(box: View) -> tuple[int, int]:
    return box.progress(Progress.PHASE), box.progress(Progress.PHASE_SINCE_NS)


def test_starting_becomes_training_with_the_first_step() -> None:
    box = view()
    phases = Phases(box, 10)
    assert shown(box) == (WorkerPhase.STARTING, 10)
    phases.training_began(20)
    assert shown(box) == (WorkerPhase.TRAINING, 20)
    assert box.progress(Progress.LAST_ACTIVITY_NS) == 20


def test_a_phase_begun_while_starting_ends_in_training() -> None:
    box = view()
    phases = Phases(box, 1)
    before = phases.enter_named("everything", 2)
    phases.training_began(3)
    assert shown(box) == (WorkerPhase.USER, 2)
    phases.leave_named(before, 4)
    assert shown(box) == (WorkerPhase.TRAINING, 4)


def test_named_phases_nest_and_data_wait_lies_over_them() -> None:
    box = view()
    phases = Phases(box, 1)
    outer = phases.enter_named("eval", 2)
    inner = phases.enter_named("sampling", 3)
    assert box.read_blob(PHASE_NAME) == b"sampling"
    waiting = phases.set(int(WorkerPhase.DATA_WAIT), 4)
    phases.set(waiting, 5)
    assert shown(box) == (WorkerPhase.USER, 5)
    phases.leave_named(inner, 6)
    assert (shown(box), box.read_blob(PHASE_NAME)) == ((WorkerPhase.USER, 6), b"eval")
    phases.leave_named(outer, 7)
    assert shown(box) == (WorkerPhase.STARTING, 7)


def test_a_long_name_is_cut_between_characters() -> None:
    box = view()
    Phases(box, 1).enter_named("é" * 1000, 2)
    text = box.read_blob(PHASE_NAME)
    assert text is not None and len(text) <= PHASE_NAME.capacity
    assert set(text.decode()) == {"é"}
