"""Event files as TensorBoard itself reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from torchloom.export.events_file import EventsFile
from torchloom.export.tensorboard import Scalars


def series(name: str, at_s: list[float], mean: list[float | None]) -> dict[str, Any]:
    return {"name": name, "width_s": 1.0, "at_s": at_s, "mean": mean, "low": mean, "high": mean}


def found(*made: dict[str, Any]) -> Any:
    return {"job": "j", "as_of_ns": 0, "names": [], "series": list(made)}


def read(directory: Path) -> dict[str, list[tuple[int, float, float]]]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip("tensorboard is not installed")
    reader = EventAccumulator(str(directory))
    reader.Reload()
    tags = reader.Tags()["scalars"]
    return {tag: [(e.step, e.wall_time, e.value) for e in reader.Scalars(tag)] for tag in tags}


def test_tensorboard_reads_values_steps_and_times(tmp_path: Path) -> None:
    file = EventsFile(tmp_path, 1000.0)
    scalars = Scalars(file)
    steps = series("step", [10.0, 20.0, 30.0], [100.0, 200.0, None])
    loss = series("metric:loss", [10.0, 15.0, 40.0], [0.5, None, 0.25])
    scalars.write(found(steps, loss, series("steps_per_s", [15.0], [7.0])), final=True)
    file.close()
    assert read(tmp_path) == {
        "loom/loss": [(100, 10.0, 0.5), (200, 40.0, 0.25)],
        "job/steps_per_s": [(150, 15.0, 7.0)],
    }


def test_a_point_is_written_once_and_the_newest_when_it_is_final(tmp_path: Path) -> None:
    file = EventsFile(tmp_path, 1000.0)
    scalars = Scalars(file)
    scalars.write(found(series("metric:é", [1.0, 2.0], [1.0, 5.0])), final=False)
    scalars.write(found(series("metric:é", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0])), final=True)
    file.scalar("huge", 1e300, -1, 4.0)
    file.close()
    got = read(tmp_path)
    assert [value for _, _, value in got["loom/é"]] == [1.0, 2.0, 3.0]
    assert got["huge"][0][2] == float("inf") and got["huge"][0][0] == -1
