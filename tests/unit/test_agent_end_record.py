"""When a script ended is told in wall-clock time: it is compared with exits that somebody else saw."""

from __future__ import annotations

import mmap
import time
from pathlib import Path

from torchloom.agent.boxes import Box
from torchloom.probe.ending import end_record, write_end
from torchloom.wire.blackbox import SIZE, Header


def test_the_time_of_an_exception_is_that_of_the_wall(tmp_path: Path) -> None:
    path = tmp_path / "box"
    path.write_bytes(bytes(SIZE))
    with path.open("r+b") as file:
        box = Box(path, mmap.mmap(file.fileno(), SIZE))
    before_ns = time.time_ns()
    box.view.set_header(Header.REALTIME_NS, before_ns)
    box.view.set_header(Header.MONOTONIC_NS, time.monotonic_ns())
    write_end(box.view, end_record(ValueError("no"), stopped=False))
    end = box.end_record()
    box.close()
    assert end is not None and end.exception.endswith("ValueError")
    assert before_ns <= end.at_ns <= before_ns + 60 * 10**9
