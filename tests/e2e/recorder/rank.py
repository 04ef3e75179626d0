"""One rank of a recorder test: python rank.py <program,program…> <recorder> <rank> <world> <directory>.

Maps a black box at <directory>/box<rank>, starts the recorder ("off" starts none), joins gloo through a file
store, runs the programs and writes their results as JSON to <directory>/out<rank>.json.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torchloom.probe.observe import fallback_recorder, recorder
from torchloom.wire import blackbox as bb


class Rank:
    """What a test program gets: its place and its black box (None when nothing records)."""

    def __init__(self, kind: str, rank: int, world: int, directory: Path) -> None:
        self.kind, self.rank, self.world, self.directory = kind, rank, world, directory
        self.view: bb.View | None = None
        self.recorder: recorder.Recorder | None = None
        if kind == "off":
            return
        os.environ["LOOM_RECORDER"] = kind
        if kind == "python":
            fallback_recorder.START_BUDGET_NS = 10**18  # record everything: sampling has tests of its own
            fallback_recorder.BUDGET = 1e9
        path = directory / f"box{rank}"
        path.write_bytes(bytes(bb.SIZE))
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), bb.SIZE)
        recorder.load()
        self.view = bb.View(memoryview(mapped))
        self.recorder = recorder.start(self.view, ctypes.addressof(ctypes.c_char.from_buffer(mapped)))
        assert self.recorder.kind.name.lower() == kind, f"{kind} wanted, {self.recorder.kind!r} got"
        self._read = 0

    def new_records(self, *, settled: bool = True) -> list[dict[str, Any]]:
        """The records written since the last call; a program that asks often enough sees all of them.

        With `settled` nothing may be in flight: their completions are waited for.
        """
        if self.view is None:
            return []
        newest = self.view.progress(bb.Progress.COLLECTIVES_ENTERED)
        numbers = range(self._read + 1, newest + 1)
        self._read = newest
        # Who waits for a future may go on before the future's callbacks have run: give those a moment.
        deadline = time.monotonic() + 60
        while True:
            found = [self.view.read_collective(number) for number in numbers]
            late = [r for r in found if r is not None and r.source != bb.Source.NONE and not r.finished_ns]
            if not late or not settled or time.monotonic() > deadline:
                break
        return [record._asdict() | {"op": bb.OPS[record.op]} for record in found if record is not None]

    def wait_for_reader(self) -> None:
        """Until the test has looked at the box once more: it must not miss what it is to see."""
        looks = self.directory / "looks"
        before = looks.stat().st_size
        while looks.stat().st_size == before:
            time.sleep(0.001)

    def progress(self) -> dict[str, int]:
        return {word.name: self.view.progress(word) for word in bb.Progress} if self.view else {}


def main() -> None:
    wanted, kind, rank, world, directory = sys.argv[1:6]
    torch.set_num_threads(1)
    me = Rank(kind, int(rank), int(world), Path(directory))
    store = dist.FileStore(f"{directory}/store", me.world)
    dist.init_process_group("gloo", store=store, rank=me.rank, world_size=me.world)
    import operations
    import training

    programs: dict[str, Callable[[Rank], Any]] = {
        "matrix": operations.matrix,
        "many": operations.many,
        "groups": operations.groups,
        "forks": operations.forks,
        "failure": operations.failure,
        "ddp": training.ddp,
        "fsdp": training.fsdp,
    }
    result = {}
    for name in wanted.split(","):
        dist.barrier()
        me.new_records()
        result[name] = programs[name](me)
    dist.barrier()
    dist.destroy_process_group()
    (me.directory / f"out{me.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
