"""Makes Flight Recorder dumps of small gloo jobs, without torchloom: `flight_dumps.py OUT FIXTURES`.

Forks two ranks for each case, lets them run into it for real, and writes each rank's dumps when both stand
still: OUT/<case>/rank_<rank>, and the same as JSON in OUT/<case>-json. Then torch's own analyzer reads them,
and the fixtures: what it says is in OUT/<case>.torch.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.flight_recorder import fr_trace

HELD_S = 1.2
"""How long an operation has been waited for when the dumps are written."""


def missing(rank: int) -> int:
    if rank == 1:
        return 3
    dist.all_reduce(torch.ones(8))
    return 4


def order(rank: int) -> int:
    if rank == 1:
        dist.broadcast(torch.ones(8), 0)
    else:
        dist.all_reduce(torch.ones(8))
    return 4


def receive(rank: int) -> int:
    """Rank 0 waits for something that nobody sends."""
    if rank == 0:
        dist.recv(torch.ones(8), 1)
    dist.all_reduce(torch.ones(8))
    return 4


def healthy(rank: int) -> int:
    dist.all_reduce(torch.ones(8))
    return 4


CASES: dict[str, tuple[Callable[[int], int], tuple[int, int]]] = {
    "missing": (missing, (4, 3)),
    "order": (order, (4, 4)),
    "receive": (receive, (3, 4)),
    "healthy": (healthy, (4, 4)),
}
"""Each with how many operations its ranks will have recorded."""


def entries() -> int:
    return len(json.loads(c10d._dump_fr_trace_json()).get("entries", []))


def write(out: str, case: str, rank: int) -> None:
    # Without stacks: the first dump with stacks loads the debug information of all libraries, for seconds.
    pickled = c10d._dump_fr_trace(True, False, False)
    for place, data in ((case, pickled), (f"{case}-json", c10d._dump_fr_trace_json())):
        os.makedirs(f"{out}/{place}", exist_ok=True)
        with open(f"{out}/{place}/rank_{rank}", "wb") as file:
            file.write(data)


def reached(out: str, case: str, point: str) -> None:
    with open(f"{out}/{case}.{point}", "wb"):
        pass


def wait_for(out: str, case: str, point: str) -> None:
    until = time.monotonic() + 60
    while not os.path.exists(f"{out}/{case}.{point}"):
        if time.monotonic() > until:
            raise TimeoutError(f"{case}: {point}")
        time.sleep(0.01)


def join(out: str, case: str, rank: int) -> None:
    store = dist.FileStore(f"{out}/{case}.store", 2)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=120)
    )
    for _ in range(3):
        dist.all_reduce(torch.ones(8))


def run(out: str, case: str, rank: int) -> None:
    body, expected = CASES[case]
    join(out, case, rank)
    threading.Thread(target=body, args=(rank,), daemon=True).start()
    while entries() < expected[rank]:
        time.sleep(0.01)
    reached(out, case, f"there-{rank}")
    wait_for(out, case, f"there-{1 - rank}")
    since = time.monotonic()
    while time.monotonic() - since < HELD_S:
        time.sleep(0.05)
    write(out, case, rank)
    reached(out, case, f"written-{rank}")
    wait_for(out, case, f"written-{1 - rank}")  # the end of a peer would end the wait


def size(out: str, rank: int) -> None:
    """gloo ends a process that gets more than it expects: the smaller side writes before the other comes."""
    join(out, "size", rank)
    if rank == 1:
        wait_for(out, "size", "written-0")
    work = dist.all_reduce(torch.ones(16 if rank == 1 else 8), async_op=True)
    write(out, "size", rank)
    reached(out, "size", f"written-{rank}")
    if rank == 0:
        work.wait()


def torch_says(directory: Path) -> str:
    """The output of `torchfrtrace`, or how it failed."""
    said: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("Flight Recorder")
    logger.addHandler(listener)
    try:
        fr_trace.main([str(directory), "-p", "rank_"])
    except Exception as error:  # noqa: BLE001 – it is what is recorded
        said.append(f"failed: {error!r}")
    finally:
        logger.removeHandler(listener)
    return "\n".join(said)


def compare(out: Path, fixtures: Path) -> None:
    for case in (*CASES, "size"):
        (out / f"{case}.torch-raw").write_text(torch_says(out / case))
        # gloo lists its default group without a name, for which torch's analyzer has no answer.
        named = out / f"{case}-named"
        named.mkdir()
        for rank in (0, 1):
            dump = pickle.loads((out / case / f"rank_{rank}").read_bytes())
            dump["pg_config"] = {"0": {**dump["pg_config"].get("", {}), "name": "0"}}
            (named / f"rank_{rank}").write_bytes(pickle.dumps(dump))
        (out / f"{case}.torch").write_text(torch_says(named))
    for fixture in sorted(fixtures.glob("nccl-*")):
        pickled = out / f"{fixture.name}-pickled"
        pickled.mkdir()
        for file in fixture.iterdir():
            dump = json.loads(file.read_text())
            for entry in dump["entries"]:
                entry["process_group"] = tuple(entry["process_group"])
            (pickled / f"rank_{int(file.stem[-1])}").write_bytes(pickle.dumps(dump))
        (out / f"{fixture.name}.torch").write_text(torch_says(pickled))


def main(out: str, fixtures: str) -> None:
    ranks = []
    for case in (*CASES, "size"):
        for rank in (0, 1):
            pid = os.fork()
            if pid == 0:
                try:
                    size(out, rank) if case == "size" else run(out, case, rank)
                except Exception:  # noqa: BLE001 – for the log of the test
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(0)
            ranks.append(pid)
    for pid in ranks:
        os.waitpid(pid, 0)
    compare(Path(out), Path(fixtures))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
