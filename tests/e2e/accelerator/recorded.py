"""Programs on the simulated accelerator under the native recorder: what the black box says of a device.

python recorded.py <program,program…> <directory>: prints one line of JSON.
More than 400 lines, because one start of two ranks serves all of them.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from torchloom.agent.observe.collectives import record
from torchloom.chaos import accelerator
from torchloom.core.detect.window import waited_ns
from torchloom.probe.observe import recorder
from torchloom.wire import blackbox as bb

DEVICE = "loomsim"
Asked = Callable[[], Any]


class Box:
    """This rank's black box."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(bb.SIZE))
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), bb.SIZE)
        recorder.load()
        self.view = bb.View(memoryview(mapped))
        started = recorder.start(self.view, ctypes.addressof(ctypes.c_char.from_buffer(mapped)))
        assert started.kind is bb.RecorderKind.NATIVE
        self.read = 0

    def fresh(self) -> list[bb.CollectiveRecord]:
        """Records since the last call."""
        newest = self.view.progress(bb.Progress.COLLECTIVES_ENTERED)
        found = [self.view.read_collective(seq) for seq in range(self.read + 1, newest + 1)]
        self.read = newest
        return [record for record in found if record is not None]

    def again(self, records: list[bb.CollectiveRecord]) -> list[bb.CollectiveRecord]:
        return [found for r in records if (found := self.view.read_collective(r.seq)) is not None]

    def finished(self, records: list[bb.CollectiveRecord]) -> list[bb.CollectiveRecord]:
        """The same records once all of them are over."""
        until(lambda: all(r.finished_ns for r in self.again(records)), "a collective never ended")
        return self.again(records)


def until(condition: Asked, or_else: str, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, or_else
        time.sleep(0.002)


def repeated(box: Box, measure: Callable[[], tuple[float, dict[str, Any]]]) -> dict[str, Any]:
    """What this rank measured when rank 0 waited for rank 1 and rank 1 hardly waited, or at the last try: a
    machine that stands still for a moment spoils one measurement. `measure` also gives how long the rank
    waited, as a part of the time for which rank 1 is busy."""
    for _ in range(8):
        # While events cost too much, the steps of a training are not all timed.
        until(lambda: box.view.progress(bb.Progress.DEVICE_EVERY) == 1, "not every step is timed")
        waited, found = measure()
        of_all = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(of_all, torch.tensor([waited]))
        early, late = (float(one) for one in of_all)
        if 0.8 < early < 1000 and late < early / 3:
            break
    return found


def ones(count: int = 4) -> torch.Tensor:
    return torch.ones(count, device=DEVICE)


def behind(box: Box) -> dict[str, Any]:
    """A device that stands has come to nothing and ended nothing, however far ahead its host is."""
    tensors = [ones() for _ in range(6)]
    torch.accelerator.synchronize()
    box.fresh()
    accelerator.stick()
    for tensor in tensors[:3]:
        dist.all_reduce(tensor)
    work = dist.all_reduce(tensors[3], async_op=True)
    future = dist.all_reduce(tensors[4], async_op=True).get_future()
    dist.all_reduce(tensors[5], async_op=True).wait()
    records = box.fresh()
    until(lambda: box.view.progress(bb.Progress.DEVICE_OLDEST) == records[0].seq, "the oldest is not told")
    until(
        lambda: box.view.progress(bb.Progress.DEVICE_STATE) == bb.DeviceState.BUSY, "the device is not busy"
    )
    standing = box.again(records)
    released_ns = time.monotonic_ns()
    accelerator.release()
    over = box.finished(records)
    del work, future
    until(
        lambda: box.view.progress(bb.Progress.DEVICE_STATE) == bb.DeviceState.IDLE, "the device is not idle"
    )
    return {
        "sources": sorted({r.source for r in standing}),
        "standing": [[r.finished_ns, r.arrived_ns, r.approaching] for r in standing],
        "in order": all(released_ns <= r.arrived_ns <= r.finished_ns for r in over),
        "oldest": box.view.progress(bb.Progress.DEVICE_OLDEST),
    }


def waits(box: Box) -> dict[str, Any]:
    """Rank 1's device comes later to each of them: rank 0 waits, as long as rank 1 was busy."""
    x, took = ones(), {}

    def measure(name: str) -> tuple[float, dict[str, Any]]:
        dist.all_reduce(x)
        torch.accelerator.synchronize()
        dist.barrier(device_ids=[0])
        box.fresh()
        if dist.get_rank() == 1:
            accelerator.busy(80)
        if name == "sync":
            dist.all_reduce(x)
        elif name == "async":
            work = dist.all_reduce(x, async_op=True)
            assert work is not None
            work.wait()
            del work
        else:
            future = dist.all_reduce(x, async_op=True).get_future()
            future.wait()
            del future
        (record,) = box.finished(box.fresh())
        waited = (record.finished_ns - record.arrived_ns) / 80e6
        return waited, {name: waited}

    for name in ("sync", "async", "future"):
        took |= repeated(box, partial(measure, name))
    return took


def holds(box: Box) -> dict[str, Any]:
    """What the program drops is gone, though the device has not come to it."""
    tensors = [ones(1024) for _ in range(5)]
    torch.accelerator.synchronize()
    gone = [weakref.ref(tensor) for tensor in tensors]
    box.fresh()
    accelerator.stick()
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    looks = box.view.progress(bb.Progress.DEVICE_LOOKS)
    until(lambda: box.view.progress(bb.Progress.DEVICE_LOOKS) > looks + 3, "nobody looks")
    alive = [ref() is not None for ref in gone]
    for number, work in enumerate(works):
        if number != 3:
            work.wait()
    del work
    works.clear()
    tensors.clear()
    # A work that was asked at the very moment it was dropped is freed by the next call.
    dist.all_reduce(ones())
    gc.collect()
    dead = [ref() is None for ref in gone]
    records = box.fresh()
    looks = box.view.progress(bb.Progress.DEVICE_LOOKS)
    until(lambda: box.view.progress(bb.Progress.DEVICE_LOOKS) > looks + 3, "nobody looks")
    standing = [[r.finished_ns, r.approaching] for r in box.again(records)]
    accelerator.release()
    over = box.finished([*records[:3], *records[4:]])

    def forgotten() -> bool:
        """Nobody can know its end, unless a later one of its group is over."""
        (dropped,) = box.again([records[3]])
        return dropped.source == bb.Source.NONE or dropped.finished_ns > 0

    until(forgotten, "one whose end nobody can know is kept")
    return {"alive": alive, "dead": dead, "standing": standing, "sources": [r.source for r in over]}


def unawaited(box: Box) -> dict[str, Any]:
    """Steps whose works nobody keeps or awaits are the device's steps all the same."""
    until(lambda: box.view.progress(bb.Progress.DEVICE_EVERY) == 1, "not every step is timed")
    first = box.view.progress(bb.Progress.STEPS)
    for step in range(6):
        accelerator.busy(10)
        dist.all_reduce(ones(), async_op=True)
        box.view.set_progress(bb.Progress.STEPS, first + step + 1)
    torch.accelerator.synchronize()
    box.fresh()
    numbers = range(first + 2, first + 6)
    until(lambda: all(box.view.read_device_step(n) is not None for n in numbers), "its steps are not told")
    made = [step for n in numbers if (step := box.view.read_device_step(n)) is not None]
    return {"steps": [step.step_ns / 10e6 for step in made]}


def failure(box: Box) -> dict[str, Any]:
    torch.accelerator.synchronize()
    dist.barrier(device_ids=[0])
    box.fresh()
    accelerator.fail()
    work = dist.all_reduce(ones(), async_op=True)
    records = box.finished(box.fresh())
    del work
    error = (box.view.read_blob(bb.DEVICE_ERROR) or b"").decode()
    return {"flags": [r.flags & bb.FLAG_FAILED for r in records], "error": error}


def results(box: Box) -> dict[str, Any]:
    """A backend that says how its works ended is asked about those that everybody has dropped: such a one is
    not over because the device has come to it, and its error is known."""
    accelerator.results()
    box.fresh()
    work = dist.all_reduce(ones(), async_op=True)
    box.finished(box.fresh())
    del work
    looks = box.view.progress(bb.Progress.DEVICE_LOOKS)
    until(lambda: box.view.progress(bb.Progress.DEVICE_LOOKS) > looks + 3, "nobody looks")
    accelerator.stall()
    for _ in range(3):
        dist.all_reduce(ones(), async_op=True)
    torch.accelerator.current_stream().synchronize()
    records = box.fresh()
    until(lambda: box.again(records)[0].arrived_ns, "the device has not come to it")
    looks = box.view.progress(bb.Progress.DEVICE_LOOKS)
    until(lambda: box.view.progress(bb.Progress.DEVICE_LOOKS) > looks + 3, "nobody looks")
    standing = [[r.finished_ns, r.source] for r in box.again(records)]
    accelerator.stall(False)
    over = [r.flags & bb.FLAG_FAILED for r in box.finished(records)]
    dist.barrier()
    box.fresh()
    accelerator.fail(1)
    for _ in range(3):
        dist.all_reduce(ones(), async_op=True)
    failed = [r.flags & bb.FLAG_FAILED for r in box.finished(box.fresh())]
    error = (box.view.read_blob(bb.DEVICE_ERROR) or b"").decode()
    dist.barrier()
    return {"standing": standing, "over": over, "failed": failed, "error": error}


def training(box: Box) -> dict[str, Any]:
    """DDP's buckets end, and rank 1's slower device makes rank 0 wait in every step."""
    torch.manual_seed(3)
    net = nn.Linear(16, 16).to(DEVICE)
    ddp = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0005)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)

    def measure() -> tuple[float, dict[str, Any]]:
        box.fresh()
        first = box.view.progress(bb.Progress.STEPS)
        records, ends = [], {}
        for step in range(12):
            if dist.get_rank() == 1:
                accelerator.busy(40)
            optimizer.zero_grad()
            ddp(torch.ones(4, 16, device=DEVICE)).mean().backward()
            optimizer.step()
            box.view.set_progress(bb.Progress.STEPS, first + step + 1)  # as the probe's hooks do
            records += box.fresh()
            ends[first + step + 1] = records[-1].seq
        dist.all_reduce(ones())
        records += box.fresh()
        over = box.finished(records)
        until(lambda: box.view.read_device_step(first + 12) is not None, "the last step was never told")
        steps = [box.view.read_device_step(first + n) for n in range(2, 13)]
        waits = sorted(r.finished_ns - r.arrived_ns for r in over[-12:])
        waited = waits[len(waits) // 2] / 40e6
        return waited, {
            "source": sorted({r.source for r in over}),
            "steps": [step.step_ns / 40e6 for step in steps if step is not None],
            "waits": waited,
            "equal": _told_equally(box, over, ends),
        }

    return repeated(box, measure)


def _told_equally(box: Box, over: list[bb.CollectiveRecord], until_seq: dict[int, int]) -> bool:
    """Whether what the recorder says of a step is what its records say. `until_seq`: each step's last one."""
    found = []
    for step, last in until_seq.items():
        mine = [record(one, "") for one in over if until_seq.get(step - 1, last) < one.seq <= last]
        if mine:
            told = box.view.read_device_wait(step)
            found.append(told is not None and told.wait_ns == waited_ns(mine))
    return len(found) > 8 and all(found)


def deep(box: Box) -> dict[str, Any]:
    """A host further ahead than the ring is long: where its device stands is known, and so are its steps."""
    torch.accelerator.synchronize()
    until(lambda: box.view.progress(bb.Progress.DEVICE_EVERY) == 1, "not every step is timed")
    box.fresh()
    oldest, first = box.read + 1, box.view.progress(bb.Progress.STEPS)
    x = ones()
    accelerator.depth(100_000)
    accelerator.stick()
    for step in range(500):
        for _ in range(3):
            dist.all_reduce(x)
        box.view.set_progress(bb.Progress.STEPS, first + step + 1)
    until(lambda: [c.seq for c in box.view.device_heads()] == [oldest], "where it stands is not told")
    (head,) = box.view.device_heads()
    overwritten = box.view.read_collective(oldest) is None
    accelerator.release()
    until(lambda: not box.view.progress(bb.Progress.DEVICE_OLDEST), "it never ended")
    dist.all_reduce(x)
    until(lambda: box.view.newest_device_step() >= first + 499, "its steps are not told")
    accelerator.depth(1024)
    dist.barrier()
    box.fresh()
    steps = range(first + 1, first + 500)
    return {
        "overwritten": overwritten,
        "head": [bb.OPS[head.op], head.source, head.finished_ns, head.approaching, head.head_ns > 0],
        "waits": sum(box.view.read_device_wait(step) is not None for step in steps) / len(steps),
        "after": len(box.view.device_heads()),
    }


def pairs(box: Box) -> dict[str, Any]:
    """Sends and receives end, each in its own direction, also where a receive waits for long."""
    me = dist.get_rank()
    torch.accelerator.synchronize()
    dist.barrier(device_ids=[0])
    box.fresh()
    got = torch.empty(4, device=DEVICE)
    if me == 1:
        accelerator.busy(60)
    ops = [dist.P2POp(dist.isend, ones(), 1 - me), dist.P2POp(dist.irecv, got, 1 - me)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    over = box.finished(box.fresh())
    return {"ops": [bb.OPS[r.op] for r in over], "peers": [r.peer for r in over], "value": got.sum().item()}


def batches(box: Box) -> dict[str, Any]:
    """A batch has one work for all of its operations, or none: each operation ends with its batch."""
    me, told = dist.get_rank(), {}
    for name in ("pairs", "sync", "async"):
        torch.accelerator.synchronize()
        dist.barrier(device_ids=[0])
        box.fresh()
        x, got, works = ones(), torch.empty(4, device=DEVICE), []
        accelerator.stick()
        if name == "pairs":
            ops = [dist.P2POp(dist.isend, x, 1 - me), dist.P2POp(dist.irecv, got, 1 - me)]
            works = dist.batch_isend_irecv(ops)
        else:
            group = dist.distributed_c10d._get_default_group()
            how = {"device": torch.device(DEVICE), "async_ops": name == "async"}
            with dist.distributed_c10d._coalescing_manager(group, **how) as batch:
                dist.broadcast(x, 0, async_op=name == "async")
                dist.broadcast(got, 1, async_op=name == "async")
            works = batch.works if name == "async" else []
        records = box.fresh()
        looks = box.view.progress(bb.Progress.DEVICE_LOOKS)
        until(lambda at=looks: box.view.progress(bb.Progress.DEVICE_LOOKS) > at + 3, "nobody looks")
        standing = box.again(records)
        accelerator.release()
        for work in works:
            work.wait()
        over = box.finished(records)
        torch.accelerator.synchronize()
        told[name] = {
            "ops": [bb.OPS[r.op] for r in over],
            "standing": [[r.finished_ns, r.arrived_ns, r.approaching] for r in standing],
            "sources": sorted({r.source for r in over}),
            "in order": all(r.arrived_ns <= r.finished_ns for r in over),
            "oldest": box.view.progress(bb.Progress.DEVICE_OLDEST),
        }
    told["trips"] = box.view.progress(bb.Progress.GUARD_TRIPS)
    return told


def barrier(box: Box) -> dict[str, Any]:
    """A barrier keeps its host inside the call: it is watched all the same."""
    torch.accelerator.synchronize()
    dist.barrier(device_ids=[0])
    box.fresh()
    accelerator.stick()
    inside = threading.Thread(target=partial(dist.barrier, device_ids=[0]))
    inside.start()
    until(lambda: box.view.progress(bb.Progress.COLLECTIVES_ENTERED) > box.read, "nobody entered")
    records = box.fresh()
    until(lambda: box.view.progress(bb.Progress.DEVICE_OLDEST) == records[0].seq, "the oldest is not told")
    standing, hangs = box.again(records), inside.is_alive()
    accelerator.release()
    inside.join()
    over = box.finished(records)
    return {
        "ops": [bb.OPS[r.op] for r in over],
        "hangs": hangs,
        "standing": [[r.finished_ns, r.arrived_ns, r.approaching] for r in standing],
        "sources": [r.source for r in (*standing, *over)],
        "in order": all(0 < r.arrived_ns <= r.finished_ns for r in over),
        "trips": box.view.progress(bb.Progress.GUARD_TRIPS),
    }


def rests(box: Box) -> dict[str, Any]:
    """How long it is between two looks while nothing is outstanding, and while something is."""

    def gap_s() -> float:
        """The longest of a few; those of a machine that stands still are longer in each case."""
        found = []
        for _ in range(4):
            began, looks = time.monotonic(), box.view.progress(bb.Progress.DEVICE_LOOKS)
            until(lambda at=looks: box.view.progress(bb.Progress.DEVICE_LOOKS) > at, "nobody looks")
            found.append(time.monotonic() - began)
        return sorted(found)[-2]

    torch.accelerator.synchronize()
    until(
        lambda: box.view.progress(bb.Progress.DEVICE_STATE) == bb.DeviceState.IDLE, "the device is not idle"
    )
    idle = gap_s()
    box.fresh()
    began = time.monotonic()
    dist.all_reduce(ones())
    box.finished(box.fresh())
    awake = time.monotonic() - began
    accelerator.stick()
    work = dist.all_reduce(ones(), async_op=True)
    until(lambda: box.view.progress(bb.Progress.DEVICE_OLDEST) > 0, "nobody looks")
    busy = gap_s()
    accelerator.release()
    box.finished(box.fresh())
    del work
    return {"idle": idle, "busy": busy, "awake": awake}


def forks(box: Box) -> dict[str, Any]:
    """A child has no such thread and writes nothing; the parent's continues."""
    threads = _threads(os.getpid())
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, json.dumps(_threads(os.getpid())).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    child = json.loads(os.read(read, 65536))
    os.close(read)
    os.close(write)
    box.fresh()
    dist.all_reduce(ones())
    box.finished(box.fresh())
    return {"parent": threads.count("loom-device"), "child": child.count("loom-device")}


def _threads(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [(task / "comm").read_text().strip() for task in tasks]


def capture(box: Box) -> dict[str, Any]:
    """While a stream is captured nothing is put on it, and no question ends the capture."""
    x = ones()
    accelerator.stick()
    dist.all_reduce(x)  # outstanding, so the thread asks all the time
    box.fresh()
    looks = box.view.progress(bb.Progress.DEVICE_LOOKS)
    accelerator.capture(True)
    until(lambda: box.view.progress(bb.Progress.DEVICE_LOOKS) > looks + 5, "nobody looks")
    events = box.view.progress(bb.Progress.DEVICE_EVENTS)
    work = dist.all_reduce(x, async_op=True)
    recorded = box.view.progress(bb.Progress.DEVICE_EVENTS) - events
    told = {"invalidated": accelerator.invalidated(), "recorded": recorded}
    accelerator.capture(False)
    records = box.fresh()
    accelerator.release()
    torch.accelerator.synchronize()
    del work
    return told | {"sources": [r.source for r in records]}


def many(box: Box) -> dict[str, Any]:
    """Two thousand collectives: all end, their cost is accounted for, and looking takes next to nothing."""
    x = ones()
    torch.accelerator.synchronize()
    until(lambda: not box.view.progress(bb.Progress.DEVICE_OLDEST), "what was before is not over")
    box.fresh()
    before = {w: box.view.progress(w) for w in bb.Progress}
    began_ns = time.monotonic_ns()
    for number in range(2000):
        dist.all_reduce(x)
        if number % 100 == 99:
            torch.accelerator.synchronize()
    until(
        lambda: (
            box.view.progress(bb.Progress.COLLECTIVES_FINISHED)
            >= before[bb.Progress.COLLECTIVES_FINISHED] + 2000
        ),
        "some never ended",
    )
    passed_ns = time.monotonic_ns() - began_ns
    spent = {w.name: box.view.progress(w) - before[w] for w in bb.Progress}
    return {
        "events": spent["DEVICE_EVENTS"],
        "event_us": spent["DEVICE_EVENTS_NS"] / spent["DEVICE_EVENTS"] / 1000,
        "looking": spent["DEVICE_LOOKS_NS"] / passed_ns,
        "backwards": sum(r.finished_ns < r.arrived_ns for r in box.fresh()),
        "trips": spent["GUARD_TRIPS"],
    }


def budget(box: Box) -> dict[str, Any]:
    """Steps of many small collectives: events would take too much of the time, so fewer steps are timed, and
    every step again once that is over. Ends are recorded in each case."""
    x = ones()

    def every() -> int:
        return box.view.progress(bb.Progress.DEVICE_EVERY)

    def step(collectives: int) -> tuple[int, list[bb.CollectiveRecord]]:
        """The number of the step and its records."""
        number = box.view.progress(bb.Progress.STEPS) + 1
        for _ in range(collectives):
            dist.all_reduce(x)
        box.view.set_progress(bb.Progress.STEPS, number)
        return number, box.fresh()

    def highest(mine: int) -> int:
        """Of both ranks: a collective needs both, so they agree on how many they make."""
        votes = torch.tensor([mine])
        dist.all_reduce(votes, op=dist.ReduceOp.MAX)
        return int(votes.item())

    def both(is_so: bool) -> bool:
        return not highest(int(not is_so))

    torch.accelerator.synchronize()
    box.fresh()
    before = every()
    deadline = time.monotonic() + 60
    while not both((sampled := every()) >= 4 or time.monotonic() > deadline):
        for _ in range(20):
            step(20)
        torch.accelerator.synchronize()
    timed, over, stayed = [], [], True
    for _ in range(2 * highest(sampled)):  # each rank has its own
        number, records = step(4)
        torch.accelerator.synchronize()
        over += box.finished([r for r in records if r.source == bb.Source.DEVICE_EVENT])
        timed.append([number % sampled in (0, 1), any(r.arrived_ns or r.approaching for r in records)])
        stayed = stayed and every() == sampled
    while not both((after := every()) == 1 or time.monotonic() > deadline + 60):
        step(1)
        torch.accelerator.synchronize()
        time.sleep(0.02)
    sources = sorted({r.source for r in over})
    return {
        "before": before,
        "sampled": sampled,
        "stayed": stayed,
        "timed": timed,
        "sources": sources,
        "after": after,
    }


def gone(box: Box) -> dict[str, Any]:
    """A device that falls off the bus is told with its own words."""
    accelerator.stick()
    work = dist.all_reduce(ones(), async_op=True)
    accelerator.lose()
    until(
        lambda: box.view.progress(bb.Progress.DEVICE_STATE) == bb.DeviceState.FAILED, "the loss is not told"
    )
    del work
    return {"error": (box.view.read_blob(bb.DEVICE_ERROR) or b"").decode()}


def main() -> None:
    wanted, directory = sys.argv[1:3]
    torch.set_num_threads(1)
    accelerator.load()
    accelerator.results(False)
    box = Box(Path(directory, f"box{os.environ['RANK']}"))
    dist.init_process_group("cpu:gloo,loomsim:loomsim")
    told: dict[str, Any] = {}
    for name in wanted.split(","):
        if name != "gone":
            dist.barrier(device_ids=[0])
        # The collectives of this step are timed even if events cost so much that only one step in 64 is, as
        # on a very busy machine.
        box.view.set_progress(bb.Progress.STEPS, (box.view.progress(bb.Progress.STEPS) // 64 + 1) * 64 - 1)
        told[name] = globals()[name](box)
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
