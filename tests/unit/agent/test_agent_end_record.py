"""What is told of a worker that ended: when, by the wall clock, and after which step of its training."""

from __future__ import annotations

import mmap
import time
from pathlib import Path

from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.processes.exits import activity
from torchloom.probe.end_record import end_record, write_end
from torchloom.wire.blackbox import SIZE, Header, Progress, WorkerPhase


def test_the_time_of_an_exception_is_that_of_the_wall(tmp_path: Path) -> None:
    path = tmp_path / "box"
    path.write_bytes(bytes(SIZE))
    with path.open("r+b") as file:
        box = ReadableBox(path, mmap.mmap(file.fileno(), SIZE))
    before_ns = time.time_ns()
    box.view.set_header(Header.REALTIME_NS, before_ns)
    box.view.set_header(Header.MONOTONIC_NS, time.monotonic_ns())
    write_end(box.view, end_record(ValueError("no"), stopped=False))
    end = box.end_record()
    box.close()
    assert end is not None and end.exception.endswith("ValueError")
    assert before_ns <= end.at_ns <= before_ns + 60 * 10**9


def test_the_last_step_is_that_of_the_training(tmp_path: Path) -> None:
    path = tmp_path / "box"
    path.write_bytes(bytes(SIZE))
    with path.open("r+b") as file:
        box = ReadableBox(path, mmap.mmap(file.fileno(), SIZE))
    for word, value in (
        (Progress.PHASE, int(WorkerPhase.TRAINING)),
        (Progress.STEPS, 70),
        (Progress.STEP_ENDED_NS, 8 * 10**9),
        (Progress.TRAINING_STEP, 50 + 1),
        (Progress.TRAINING_STEP_AT, 70),
    ):
        box.view.set_progress(word, value)
    told = activity(box, 10 * 10**9)
    box.close()
    assert told == "training, 2.0 s after its step 50"
