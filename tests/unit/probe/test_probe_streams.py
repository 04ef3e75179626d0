"""Output that finds no room is dropped, counted in the black box, and mentioned in the log in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import resource, sys
from torchloom.probe import streams
from torchloom.wire.blackbox import SIZE, Progress, View

def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

streams.guard()
view = View(memoryview(bytearray(SIZE)))
streams.count_into(view)
print("first", flush=True)
room(300)
for number in range(100):
    print(f"line {number} {'x' * 40}", flush=True)
in_between = view.progress(Progress.LOG_LOST_LINES)
if sys.argv[1] == "again":
    room(1 << 20)
    print("last", flush=True)
room(1 << 20)
with open(sys.argv[2], "w") as file:
    lines, size = view.progress(Progress.LOG_LOST_LINES), view.progress(Progress.LOG_LOST_BYTES)
    print(in_between, lines, size, file=file)
"""
"""A limit of a file's size instead of a full disk: both are errors of the write, and nobody needs root."""


def run(tmp_path: Path, how: str) -> tuple[list[str], list[int]]:
    log, counts = tmp_path / "log", tmp_path / "counts"
    with log.open("ab") as file:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, how, str(counts)], stdout=file, stderr=subprocess.PIPE
        )
    assert done.returncode == 0, done.stderr
    return log.read_text().splitlines(), [int(word) for word in counts.read_text().split()]


def test_what_is_missing_is_counted_and_mentioned_in_its_place(tmp_path: Path) -> None:
    lines, (in_between, lost, size) = run(tmp_path, "again")
    kept = sum(line.startswith("line ") and line.endswith("x" * 40) for line in lines)
    assert lines[0] == "first" and lines[-1] == "last" and 0 < kept < 100
    assert in_between == lost == 100 - kept and size > lost * 40
    assert lines[-2] == f"[loom] {lost} lines ({size} bytes) are missing here: there was no room on the disk"


def test_it_is_counted_if_there_is_never_room_again(tmp_path: Path) -> None:
    lines, (_, lost, _) = run(tmp_path, "never")
    kept = sum(line.startswith("line ") and line.endswith("x" * 40) for line in lines)
    assert lost == 100 - kept and not any("[loom]" in line for line in lines)
