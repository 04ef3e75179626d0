"""What recording costs a worker: CPU time per collective, per optimizer step, and of a whole DDP job.

On and off blocks alternate in one process, so that a noisy machine disturbs both alike; what is shown is the
median difference of neighbouring blocks. "thread" is the training thread; "process" counts gloo's thread too,
where the native recorder learns of the completion. Over 400 lines, because each measurement is a process of
its own and all of them share the way of measuring.

    python bench/overhead.py [--json] [--blocks N] [--only device]
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.table import emit, progress
from torchloom.chaos import accelerator

OPERATIONS_A_BLOCK = 300
STEPS_A_BLOCK = 300
LOOKS_A_BLOCK = 50
DDP_STEPS_A_BLOCK = 150
LOOKED_S = 5.0
KINDS = ("native", "python")
NOTES = (
    "thread: CPU of the training thread; process: of all threads, gloo's too; wall: time passed",
    "a collective is an all_reduce of 64 bytes in a group of one rank; Python records without sampling there",
    "on a device: the simulated accelerator, whose own threads are in `process` and not in `thread`",
    "the DDP job has two ranks and one bucket; there the Python recorder samples as it does in production",
    "the boundary is measured against a call that does nothing: it is what steering costs when nobody steers",
    "a look at replicas comes four times a second at most, and seldom enough to cost 0.2 % of the time",
    "off in the DDP job: hooks removed, recorder stopped, kernels still loaded",
)


# -- measuring (in child processes) -----------------------------------------------------------------
def alternate(
    blocks: int, states: dict[str, Callable[[], None]], work: Callable[[], None], count: int
) -> dict[str, dict[str, float]]:
    """Median µs per unit of `work` (which does `count` of them) in each state, and beyond the first state."""
    clocks = {"thread": time.thread_time_ns, "process": time.process_time_ns, "wall": time.monotonic_ns}
    taken: dict[str, dict[str, list[float]]] = {s: {c: [] for c in clocks} for s in states}
    for block in range(blocks + 1):
        for state, enter in states.items():
            enter()
            before = {name: clock() for name, clock in clocks.items()}
            work()
            after = {name: clock() for name, clock in clocks.items()}
            if block:  # the first round warms up
                for name in clocks:
                    taken[state][name].append((after[name] - before[name]) / count / 1000)
    first = taken[next(iter(states))]
    result: dict[str, dict[str, float]] = {}
    for state, by in taken.items():
        result[state] = {clock: statistics.median(values) for clock, values in by.items()}
        for clock, values in by.items():
            pairs = zip(values, first[clock], strict=True)
            result[state][f"{clock} extra"] = statistics.median(now - base for now, base in pairs)
    return result


def mapped_box() -> tuple[Any, int]:
    from torchloom.wire.blackbox import SIZE, View

    memory = mmap.mmap(-1, SIZE)
    return View(memoryview(memory)), ctypes.addressof(ctypes.c_char.from_buffer(memory))


def join(rank: int, world: int, directory: str, backend: str = "gloo") -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(f"{directory}/store", world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)


def collectives(kind: str, blocks: int, directory: str) -> dict[str, Any]:
    """All-reduce in a group of one: the calling thread waits for nobody, so its CPU time is the call's."""
    import torch
    import torch.distributed as dist

    from torchloom.probe.observe import fallback_recorder, recorder

    join(0, 1, directory)
    recorder.load()
    view, address = mapped_box()
    running: list[recorder.Recorder] = []
    skip = torch._C._dispatch_tls_set_dispatch_key_excluded
    fallback_recorder.BUDGET = 1e9  # measure the cost of a record: no sampling
    tensor = torch.ones(16)

    def stop() -> None:
        while running:
            running.pop().stop()
        skip("BackendSelect", False)

    def absent() -> None:
        stop()
        skip("BackendSelect", True)  # all_reduce then takes the way it takes where nothing is registered

    def record() -> None:
        stop()
        running.append(recorder.start(view, address))

    def work() -> None:
        for _ in range(OPERATIONS_A_BLOCK):
            dist.all_reduce(tensor)

    states = {"without": absent, "loaded": stop, "recording": record}
    result: dict[str, Any] = alternate(blocks, states, work, OPERATIONS_A_BLOCK)
    record()
    result["recorder"] = running[0].kind.name.lower()
    stop()
    return result


def on_device(blocks: int, directory: str) -> dict[str, Any]:
    """The same on the simulated accelerator: enqueued, with events, while a thread looks for their end."""
    import torch
    import torch.distributed as dist

    from torchloom.chaos import accelerator
    from torchloom.probe.observe import recorder

    torch.set_num_threads(1)
    accelerator.load()
    store = dist.FileStore(f"{directory}/store", 1)
    dist.init_process_group("loomsim", store=store, rank=0, world_size=1)
    recorder.load()
    view, address = mapped_box()
    running: list[recorder.Recorder] = []
    skip = torch._C._dispatch_tls_set_dispatch_key_excluded
    tensor = torch.ones(16, device="loomsim")

    def stop() -> None:
        torch.accelerator.synchronize()
        while running:
            running.pop().stop()
        skip("BackendSelect", False)

    def absent() -> None:
        stop()
        skip("BackendSelect", True)

    def record() -> None:
        stop()
        running.append(recorder.start(view, address))

    def work() -> None:
        for _ in range(OPERATIONS_A_BLOCK):
            dist.all_reduce(tensor)

    result = alternate(blocks, {"without": absent, "recording": record}, work, OPERATIONS_A_BLOCK)
    record()
    result["looking"] = {"share": share_of_looks(view)}
    stop()
    return result


def share_of_looks(view: Any) -> float:
    """What the thread that looks takes of a core while a collective is outstanding all the time."""
    import torch
    import torch.distributed as dist

    from torchloom.chaos import accelerator
    from torchloom.wire.blackbox import Progress

    accelerator.stick()
    work = dist.all_reduce(torch.ones(16, device="loomsim"), async_op=True)
    time.sleep(0.5)
    used, began = view.progress(Progress.DEVICE_LOOKS_NS), time.monotonic_ns()
    time.sleep(LOOKED_S)
    share = (view.progress(Progress.DEVICE_LOOKS_NS) - used) / (time.monotonic_ns() - began)
    accelerator.release()
    torch.accelerator.synchronize()
    del work
    return float(share)


def ddp(kind: str, blocks: int, directory: str, rank: int = 0, device: str = "cpu") -> dict[str, Any]:
    """A small DDP job on two ranks, recorder and step hooks on and off."""
    import torch

    from torchloom.chaos import accelerator
    from torchloom.probe import session
    from torchloom.probe.box import OwnBox

    if device == accelerator.NAME:
        accelerator.load()
    join(rank, 2, directory, "gloo" if device == "cpu" else device)
    view, address = mapped_box()
    probe = session.Session(OwnBox(view, address))
    optim = importlib.import_module("torch.optim.optimizer")
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    model = torch.nn.parallel.DistributedDataParallel(net.to(device))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(32, 64).to(device)
    from torchloom.probe.observe import fallback_recorder, recorder

    fallback_recorder.START_BUDGET_NS = 0  # a job spends it once, but here every block starts a recorder
    recorder.load()
    running: list[recorder.Recorder] = []

    def off() -> None:
        if device != "cpu":
            torch.accelerator.synchronize()
        probe.steps.remove()
        while running:
            running.pop().stop()

    def on() -> None:
        off()
        running.append(recorder.start(view, address))
        probe.steps.step_ended = running[0].step_ended if kind == "python" else None
        probe.steps.install(optim, torch.compiler.is_compiling, probe.guard)

    def work() -> None:
        for _ in range(DDP_STEPS_A_BLOCK):
            sgd.zero_grad()
            model(batch).square().mean().backward()
            sgd.step()

    return alternate(blocks, {"without": off, "recording": on}, work, DDP_STEPS_A_BLOCK)


def steps(blocks: int) -> dict[str, Any]:
    """optimizer.step() of one small parameter, the probe's hooks in and out; no recorder."""
    import torch

    from torchloom.probe import session
    from torchloom.probe.box import OwnBox

    torch.set_num_threads(1)
    probe = session.Session(OwnBox(*mapped_box()))
    optim = importlib.import_module("torch.optim.optimizer")
    parameter = torch.nn.Parameter(torch.ones(4))
    parameter.grad = torch.zeros(4)
    sgd = torch.optim.SGD([parameter], lr=0.1)

    def on() -> None:
        probe.steps.remove()
        probe.steps.overrides.replace({})
        probe.steps.install(optim, torch.compiler.is_compiling, probe.guard)

    def hold() -> None:
        on()
        probe.steps.overrides.replace({"lr": 0.2})

    def work() -> None:
        for _ in range(STEPS_A_BLOCK):
            sgd.step()

    states = {"without": probe.steps.remove, "hooked": on, "holding": hold}
    return alternate(blocks, states, work, STEPS_A_BLOCK)


def mailbox(blocks: int) -> dict[str, Any]:
    """What a boundary pays for steering when nothing is pending, beyond a call that does nothing."""
    from torchloom.probe import session
    from torchloom.probe.box import OwnBox

    probe = session.Session(OwnBox(*mapped_box()))
    probe.control.due = 2**63  # as after the first boundary of a job that nobody changes

    class Nothing:
        def check(self, completed: int) -> None: ...

    asked: list[Any] = [Nothing()]

    def work() -> None:
        check = asked[0].check
        for completed in range(100 * STEPS_A_BLOCK):
            check(completed)

    states = {
        "without": lambda: asked.__setitem__(0, Nothing()),
        "looking": lambda: asked.__setitem__(0, probe.steps.inbox),
    }
    return alternate(blocks, states, work, 100 * STEPS_A_BLOCK)


def replicas(blocks: int) -> dict[str, Any]:
    """One look at the parameters of a small and a large model, beyond a call that does nothing."""
    import torch

    from torchloom.probe.observe.parameter_hashes import ParameterHashes

    torch.set_num_threads(1)
    view, _ = mapped_box()
    looks: dict[str, Callable[[int], None]] = {"without": lambda step: None}
    for state, elements in (("small", 33_000), ("large", 10_000_000)):
        parts = [torch.nn.Parameter(torch.ones(elements // 10)) for _ in range(10)]
        sgd, hashing = torch.optim.SGD(parts, lr=0.1), ParameterHashes(view, lambda *told: None)
        looks[state] = lambda step, sgd=sgd, hashing=hashing: hashing._hash(step, sgd)
    chosen = ["without"]

    def work() -> None:
        look = looks[chosen[0]]
        for step in range(1, LOOKS_A_BLOCK + 1):
            look(step)

    states = {state: (lambda state=state: chosen.__setitem__(0, state)) for state in looks}
    return alternate(blocks, states, work, LOOKS_A_BLOCK)


# -- running the children ---------------------------------------------------------------------------
def child(what: str, kind: str, blocks: int, ranks: int = 1) -> dict[str, Any]:
    """Run one measurement in fresh processes; what rank 0 tells."""
    with tempfile.TemporaryDirectory(prefix="loom-bench-") as directory:
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "LOOM_RECORDER": kind, "OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen(
                [sys.executable, __file__, "--child", what, kind, str(blocks), directory, str(rank)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        told = [process.communicate()[0] for process in started]
        if any(process.returncode for process in started):
            raise SystemExit(f"measuring {what} with the {kind} recorder failed; see above")
    result: dict[str, Any] = json.loads(told[0])
    return result


def in_child(what: str, kind: str, blocks: int, directory: str, rank: int) -> None:
    match what:
        case "collectives":
            result = collectives(kind, blocks, directory)
        case "device":
            result = on_device(blocks, directory)
        case "ddp":
            result = ddp(kind, blocks, directory, rank)
        case "device-ddp":
            result = ddp(kind, blocks, directory, rank, accelerator.NAME)
        case "mailbox":
            result = mailbox(blocks)
        case "replicas":
            result = replicas(blocks)
        case _:
            result = steps(blocks)
    print(json.dumps(result))


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
    if "--child" in sys.argv:
        what, kind, blocks, directory, rank = sys.argv[2:]
        in_child(what, kind, int(blocks), directory, int(rank))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--blocks", type=int, default=20, help="blocks of each state")
    parser.add_argument("--only", choices=("device",), help="nothing but the rows of devices")
    options = parser.parse_args()
    report: dict[str, Any] = {}
    for what in ("steps", "mailbox", "replicas") if not options.only else ():
        report[what] = child(what, "none", options.blocks)
    for kind in KINDS if not options.only else ():
        progress(f"measuring the {kind} recorder")
        report[kind] = {
            "collective": child("collectives", kind, options.blocks),
            "ddp": child("ddp", kind, options.blocks, ranks=2),
        }
    if accelerator.build().library is not None:
        progress("measuring on the simulated accelerator")
        report["device"] = child("device", "native", options.blocks)
        report["device-ddp"] = child("device-ddp", "native", options.blocks, ranks=2)
    emit("What recording costs a worker (µs)", list(rows_of(report)), NOTES, options.json)


def rows_of(report: dict[str, Any]) -> Iterator[dict[str, object]]:
    for kind in KINDS if "native" in report else ():
        measured = report[kind]["collective"]
        if measured["recorder"] == kind:  # no compiler, no native recorder
            yield from rows(f"all_reduce, {kind} kernels loaded, idle", measured, "loaded")
            goal = 5.0 if kind == "native" else None
            yield from rows(f"all_reduce, {kind} recording", measured, "recording", goal)
            yield from rows(f"DDP step, {kind} recorder and hooks", report[kind]["ddp"], "recording")
    if "device" in report:
        yield from rows("all_reduce on a device, native recording", report["device"], "recording", 5.0)
        yield from rows("DDP step on a device, recorder and hooks", report["device-ddp"], "recording")
        share = {"what": "the thread that looks at devices", "clock": "% of a core", "without": 0.0}
        yield share | {"extra": round(100 * report["device"]["looking"]["share"], 3), "goal": 0.1}
    if "steps" not in report:
        return
    yield from rows("optimizer step, hooks", report["steps"], "hooked", 20.0)
    yield from rows("optimizer step, hooks, one value held", report["steps"], "holding")
    yield from rows("boundary with nothing pending", report["mailbox"], "looking", 1.0)
    yield from rows("a look at replicas, 33 thousand parameters", report["replicas"], "small")
    yield from rows("a look at replicas, 10 million parameters", report["replicas"], "large")


def rows(
    what: str, measured: dict[str, Any], state: str, goal: float | None = None
) -> Iterator[dict[str, object]]:
    for clock in ("thread", "process", "wall"):
        base, extra = measured["without"][clock], measured[state][f"{clock} extra"]
        yield {
            "what": what,
            "clock": clock,
            "without": round(base, 2),
            "extra": round(extra, 3),
            "extra %": round(100 * extra / base, 2),
            "goal": goal if clock == "thread" else None,
        }


if __name__ == "__main__":
    main()
