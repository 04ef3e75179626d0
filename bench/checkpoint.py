"""What a checkpoint costs the training loop, beside torch.save and DCP, in one run.

    python bench/checkpoint.py [--mb 400 2000] [--rounds N] [--no-s3] [--quick] [--threads N] [--phases]
                               [--only WORD …]

Takes less than ten minutes on a quiet machine. Four FSDP2 ranks, each with its shards, have rows of their
own: a time is that of all ranks together, from the first one's beginning to the last one's end. `--phases`
prints where the blocking time of our saves goes.

Blocking: how long the training loop waits. Total: until the state is durable in the store. Restore: into a
model and an optimizer whose tensors are there; and in a new process, as after a crash, where the optimizer
has no state yet and its memory has to be made. The state is a model with Adam; every method is measured
between two measurements of the machine, and the best round counts, because the machine is shared. Beside
them the bounds of this run: one copy of the state into memory that is there, and that copy out of shared
memory which this process has not mapped before, by mapping or by reading it, whichever is quicker: what any
restore from memory has to do. The copy is measured as often as it can be made without a pause (`one_copy_s`,
the stricter bound) and under the conditions of a save, after a pause for calm (`paused_copy_s`).

More than 400 lines: the methods, their bounds and the rows of one table are read together.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import mmap
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

import torchloom as loom
from support.calm import calm
from support.goals import LIMIT_ROW, MEMORY_ROW
from support.phases import Phases
from support.plain_s3 import PlainS3, bytes_of
from support.restored import build
from support.s3 import available, s3_server
from support.table import emit, progress

NOTHING = float("nan")
NEW_PROCESS = Path(__file__).resolve().parent / "support" / "restored.py"
SHARDED = Path(__file__).resolve().parent / "support" / "sharded_rank.py"
RANKS = 4
IN_TURN = 6
"""Restores in new processes that count, of each kind."""
DCP_ROW, BOUND_ROW = "DCP save", LIMIT_ROW


class Training:
    """A model and an optimizer whose states take about so many megabytes together."""

    def __init__(self, megabytes: int) -> None:
        self.megabytes = megabytes
        self.model, self.optimizer = build(megabytes)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[torch.Tensor]:
        moments = [t for state in self.optimizer.state.values() for t in state.values() if t.dim()]
        return [*(p.detach() for p in self.model.parameters()), *moments]


class Method(Protocol):
    def save(self, step: int) -> tuple[float, float]:
        """(blocking, total) seconds."""

    def settle(self) -> None:
        """Let what a save leaves to be done beside the training be done."""

    def restore(self) -> float: ...

    def restore_anew(self) -> float:
        """In a process of its own."""

    def close(self) -> None: ...


class Loom:
    """loom.Checkpoint; with `memory`, as under an agent."""

    def __init__(self, training: Training, where: str, memory: Path | None, name: str) -> None:
        os.environ.pop("LOOM_MEMORY_DIR", None)
        if memory is not None:
            os.environ["LOOM_MEMORY_DIR"] = str(memory)
        self._memory, self._training = memory, training
        self._parts = {"model": training.model, "optimizer": training.optimizer}
        self._options: dict[str, Any] = {"every": 10**9, "keep": 1, "dir": where, "name": name}
        self._ckpt = loom.Checkpoint(**self._parts, **self._options)

    def save(self, step: int) -> tuple[float, float]:
        began = time.perf_counter()
        self._ckpt.save(step)
        blocked = time.perf_counter() - began
        self._ckpt.wait()
        assert not self._ckpt.failures
        return blocked, time.perf_counter() - began

    def settle(self) -> None:
        self._ckpt._staging.finish_making()

    def restore(self) -> float:
        if self._memory is not None:
            os.environ["LOOM_MEMORY_DIR"] = str(self._memory)
        again = loom.Checkpoint(**self._parts, **self._options)
        began = time.perf_counter()
        assert again.restore() > 0
        took = time.perf_counter() - began
        assert again.restored is not None
        assert (again.restored.where == "memory") == (self._memory is not None)
        # The one before may not save any more: a new life of the job has begun.
        self._ckpt.close()
        self._ckpt = again
        return took

    def restore_anew(self) -> float:
        place, name = self._options["dir"], self._options["name"]
        took = in_new_process(self._training.megabytes, "loom", place, name)
        # Another life of the job has begun; this process must begin the next to save again.
        self.restore()
        return took

    def close(self) -> None:
        self._ckpt.close()
        if self._memory is not None:
            shutil.rmtree(self._memory, ignore_errors=True)
            os.environ.pop("LOOM_MEMORY_DIR", None)


class TorchSave:
    """torch.save and fsync."""

    def __init__(self, training: Training, where: Path) -> None:
        self._training, self._path = training, where / "state.pt"
        where.mkdir()

    def save(self, step: int) -> tuple[float, float]:
        began = time.perf_counter()
        with open(self._path, "wb") as file:
            torch.save(self._training.state(), file)
            file.flush()
            os.fsync(file.fileno())
        took = time.perf_counter() - began
        return took, took

    def settle(self) -> None: ...

    def restore(self) -> float:
        began = time.perf_counter()
        state = torch.load(self._path, weights_only=True)
        self._training.model.load_state_dict(state["model"])
        self._training.optimizer.load_state_dict(state["optimizer"])
        return time.perf_counter() - began

    def restore_anew(self) -> float:
        return in_new_process(self._training.megabytes, "torch", str(self._path.parent), "-")

    def close(self) -> None: ...


class Dcp:
    """torch.distributed.checkpoint: `save`, `async_save`, and `async_save` with a stager that is kept."""

    def __init__(self, training: Training, where: Path, mode: str) -> None:
        self._training, self._where, self._mode = training, where, mode
        options = StagingOptions(False, True, False, False)
        self._stager = DefaultStager(options) if mode == "kept" else None
        self._last = where

    def save(self, step: int) -> tuple[float, float]:
        shutil.rmtree(self._last, ignore_errors=True)
        self._last = self._where / str(step)
        began = time.perf_counter()
        state = self._training.state()
        if self._mode == "save":
            dcp.save(state, checkpoint_id=self._last)
            took = time.perf_counter() - began
            return took, took
        response: Any = dcp.async_save(state, checkpoint_id=self._last, async_stager=self._stager)
        blocked = time.perf_counter() - began
        getattr(response, "upload_completion", response).result()
        return blocked, time.perf_counter() - began

    def settle(self) -> None: ...

    def restore(self) -> float:
        began = time.perf_counter()
        state = self._training.state()
        dcp.load(state, checkpoint_id=self._last)
        self._training.model.load_state_dict(state["model"])
        self._training.optimizer.load_state_dict(state["optimizer"])
        return time.perf_counter() - began

    def restore_anew(self) -> float:
        if self._mode != "save":  # the files are the same
            return NOTHING
        return in_new_process(self._training.megabytes, "dcp", str(self._last), "-")

    def close(self) -> None:
        if self._stager is not None:
            self._stager.close()


def copying(training: Training) -> Callable[[], float]:
    """A function that copies the state into memory that is there, and says how long that took."""
    kept = [torch.zeros_like(tensor) for tensor in training.tensors()]

    def copy() -> float:
        inside = training.tensors()  # torch's own restores put others into the optimizer
        began = time.perf_counter()
        torch._foreach_copy_(kept, inside)
        return time.perf_counter() - began

    return copy


def copy_bound(training: Training, rounds: int) -> float:
    """The best of some copies, one after another."""
    copy = copying(training)
    return min(copy() for _ in range(rounds + 1))


def shared_copy_bound(training: Training, rounds: int) -> float:
    """The same out of shared memory that is not mapped yet: its pages exist, the process has to find them.

    Either it maps them, or it lets the kernel copy, on as many threads as torch has.
    """
    outside = training.tensors()
    size = sum(tensor.numel() * tensor.element_size() for tensor in outside)
    best = float("inf")
    with tempfile.TemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        for _ in range(rounds + 1):
            began = time.perf_counter()
            words = torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.float32)
            pieces, at = [], 0
            for tensor in outside:
                pieces.append(words[at : at + tensor.numel()].view(tensor.shape))
                at += tensor.numel()
            torch._foreach_copy_(outside, pieces)
            best = min(best, time.perf_counter() - began)
            del words, pieces
            began = time.perf_counter()
            _read_by_threads(file.fileno(), [bytes_of(tensor) for tensor in outside])
            best = min(best, time.perf_counter() - began)
    return best


def _read_by_threads(descriptor: int, targets: list[memoryview]) -> None:
    starts = [0, *itertools.accumulate(len(target) for target in targets)]
    threads = torch.get_num_threads()

    def some(number: int) -> None:
        for n in range(number, len(targets), threads):
            os.preadv(descriptor, [targets[n]], starts[n])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(some, range(threads)))


def in_new_process(megabytes: int, kind: str, place: str, name: str) -> float:
    command = [sys.executable, str(NEW_PROCESS), str(megabytes), kind, place, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return float(done.stdout.split("restored in ")[1])


def measure(method: Method, rounds: int, copy: Callable[[], float], phases: Phases) -> tuple[float, ...]:
    """The best of each, and of `copy`, each after a pause of its own; the first saves make the memory, that
    of both slots, and a plan that is kept, and do not count."""
    for step in (1, 2):
        method.save(step)
        method.settle()
    copy()
    times, copies = [], []
    for n in range(rounds):
        calm()
        copies.append(copy())
        calm()
        with phases.noted():
            times.append(method.save(3 + n))
    back = min(method.restore() for _ in range(rounds))
    anew = min(method.restore_anew() for _ in range(max(1, rounds // 2)))
    method.close()
    gc.collect()
    return min(t[0] for t in times), min(t[1] for t in times), back, anew, min(copies)


def run(
    megabytes: int,
    rounds: int,
    disk: Path,
    memory: Path,
    s3: str | None,
    phases: Phases,
    only: list[str],
) -> list[dict[str, object]]:
    training = Training(megabytes)
    size = sum(t.numel() * t.element_size() for t in training.tensors()) / 1e6
    make: dict[str, Callable[[], Method]] = {
        "loom, disk": lambda: Loom(training, str(disk / "loom"), None, f"plain-{megabytes}"),
        MEMORY_ROW: lambda: Loom(
            training, str(disk / "loom"), memory / f"{megabytes}", f"memory-{megabytes}"
        ),
        "torch.save + fsync": lambda: TorchSave(training, disk / f"torch-{megabytes}"),
        DCP_ROW: lambda: Dcp(training, disk / f"dcp-{megabytes}", "save"),
        "DCP async_save": lambda: Dcp(training, disk / f"async-{megabytes}", "async"),
        "DCP async_save, kept shared stager": lambda: Dcp(training, disk / f"kept-{megabytes}", "kept"),
    }
    if s3 is not None:
        make["loom, S3"] = lambda: Loom(training, s3, None, f"s3-{megabytes}")
        # Its tensors are taken then: torch's own restores put others into the optimizer.
        make["S3, plain parallel client"] = lambda: PlainS3(training.tensors(), f"{s3}-plain-{megabytes}")
    rows: list[dict[str, object]] = []
    for name, begin in make.items():
        if only and not any(word in name for word in only):
            continue
        progress(f"{megabytes} MB: {name}")
        bound = copy_bound(training, rounds)
        blocking, total, back, anew, paused = measure(begin(), rounds, copying(training), phases)
        phases.print(name)
        bound = min(bound, copy_bound(training, rounds))
        mapped = shared_copy_bound(training, rounds)
        rows.append(
            {
                "state_mb": round(size),
                "method": name,
                "blocking_s": _rounded(blocking, 4),
                "copies": _rounded(blocking / bound, 2),
                "paused_copies": _rounded(blocking / paused, 2),
                "total_s": round(total, 3),
                "restore_s": round(back, 4),
                "new_process_s": _rounded(anew, 4),
                "one_copy_s": round(bound, 4),
                "paused_copy_s": round(paused, 4),
                "shared_copy_s": round(mapped, 4),
            }
        )
        progress(f"  {rows[-1]}")
    if not only:
        anew_s = in_turn_anew(training, disk, memory)
        rows.append({"state_mb": round(size), "method": BOUND_ROW})
        for row in rows:
            if row["method"] in anew_s:
                row["new_process_s"] = round(anew_s[str(row["method"])], 4)
    return rows


def in_turn_anew(training: Training, disk: Path, memory: Path) -> dict[str, float]:
    """Restores in new processes, one of each kind after the other, medians: how long new memory takes depends
    on what the host has done with free pages, which differs by more than the kinds do."""
    megabytes, name = training.megabytes, f"anew-{training.megabytes}"
    saved = Loom(training, str(disk / "loom"), memory / name, name)
    saved.save(1)
    dcp.save(training.state(), checkpoint_id=disk / name)
    times: dict[str, list[float]] = {MEMORY_ROW: [], DCP_ROW: [], BOUND_ROW: []}
    with tempfile.NamedTemporaryFile(dir=memory) as file:
        os.posix_fallocate(file.fileno(), 0, sum(t.numel() * t.element_size() for t in training.tensors()))
        kinds = (
            (MEMORY_ROW, "loom", str(disk / "loom"), name),
            (DCP_ROW, "dcp", str(disk / name), "-"),
            (BOUND_ROW, "bound", "-", file.name),
        )
        for n in range(1 + IN_TURN):
            first = n % len(kinds)  # each has each of the others before it: what one leaves, the next finds
            for row, kind, place, file_name in kinds[first:] + kinds[:first]:
                took = in_new_process(megabytes, kind, place, file_name)
                progress(f"  in a new process: {row} {took:.3f} s")
                if n:  # in the first round some of the memory is new to the whole machine
                    times[row].append(took)
    saved.close()
    shutil.rmtree(disk / name)
    return {kind: statistics.median(found) for kind, found in times.items()}


def run_sharded(megabytes: int, rounds: int, disk: Path, memory: Path) -> list[dict[str, Any]]:
    """The same for the FSDP2 state of some ranks, each with its shards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    progress(f"{megabytes} MB: {RANKS} FSDP2 ranks")
    words = [str(megabytes), str(disk / f"fsdp-{megabytes}"), str(memory / f"fsdp-{megabytes}"), str(rounds)]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(RANKS)}
    children = [
        subprocess.Popen(
            [sys.executable, str(SHARDED), *words],
            env=os.environ | meeting | {"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(RANKS)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(RANKS)
    ]
    try:
        said = [child.communicate(timeout=600) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    if any(child.returncode for child in children):
        raise SystemExit(f"{SHARDED.name} failed:\n{said[0][1]}")
    rows: list[dict[str, Any]] = json.loads(said[0][0].splitlines()[-1])
    for line in said[0][1].splitlines():
        if line.startswith("phases") or "memory tier is off" in line:
            progress(line)
    for row in rows:
        progress(f"  {row}")
    return rows


def _rounded(value: float, digits: int) -> float | None:
    """None for what a method does not do: NaN is no JSON."""
    return None if value != value else round(value, digits)


def compare(rows: list[dict[str, Any]]) -> list[str]:
    """What a restore from memory is worth, in this run."""
    notes = []
    for size in dict.fromkeys(row["state_mb"] for row in rows):
        by_name = {row["method"]: row for row in rows if row["state_mb"] == size}
        if {"loom, S3", "S3, plain parallel client"} <= by_name.keys():
            ours_s3, plain = by_name["loom, S3"], by_name["S3, plain parallel client"]
            notes.append(
                f"{size} MB: S3 saves at {plain['total_s'] / ours_s3['total_s']:.0%} and loads at "
                f"{plain['restore_s'] / ours_s3['restore_s']:.0%} of a plain parallel client's speed"
            )
        if not {MEMORY_ROW, DCP_ROW, BOUND_ROW} <= by_name.keys():  # only some rows were wanted
            continue
        ours, theirs, bound = by_name[MEMORY_ROW], by_name[DCP_ROW], by_name[BOUND_ROW]
        load = min(row["restore_s"] for name, row in by_name.items() if name.startswith("DCP"))
        notes.append(
            f"{size} MB: restored from memory {load / ours['restore_s']:.1f} × as fast as DCP's best load, "
            f"in a new process {theirs['new_process_s'] / ours['new_process_s']:.1f} × "
            f"({ours['new_process_s'] / bound['new_process_s']:.2f} × the limit); the first is "
            f"{ours['restore_s'] / ours['one_copy_s']:.1f} warm copies, and "
            f"{ours['restore_s'] / ours['shared_copy_s']:.1f} × the bound of shared memory"
        )
    return notes


def compare_sharded(rows: list[dict[str, Any]]) -> list[str]:
    notes = []
    for ours in (row for row in rows if row["method"].startswith("loom")):
        theirs = [r for r in rows if r["state_mb"] == ours["state_mb"] and r is not ours]
        blocking, load = (min(row[key] for row in theirs) for key in ("blocking_s", "restore_s"))
        back = "there was no room in memory for this state"
        if ours["restore_s"]:
            back = f"is restored from memory {load / ours['restore_s']:.1f} × as fast"
        notes.append(
            f"{ours['state_mb']} MB in {RANKS} FSDP2 ranks: blocks {blocking / ours['blocking_s']:.1f} × as "
            f"short as DCP's best; {back}"
        )
    return notes


def main() -> None:
    parser = argparse.ArgumentParser(description="what a checkpoint costs")
    parser.add_argument("--mb", type=int, nargs="+", default=None, help="400 and 2000 without it")
    parser.add_argument("--rounds", type=int, default=None, help="4 without it, 2 beyond 1000 MB")
    parser.add_argument("--quick", action="store_true", help="400 MB, 2 rounds")
    parser.add_argument(
        "--threads", type=int, default=None, help="of torch; fewer suffer less on a busy host"
    )
    parser.add_argument("--no-s3", action="store_true")
    parser.add_argument("--phases", action="store_true", help="print where our blocking time goes")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="WORD",
        help="only rows whose name has one of them: S3, DCP",
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for name in ("LOOM_JOB", "LOOM_GENERATION", "CHECKPOINT_DIR", "USE_S3"):
        os.environ.pop(name, None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers and files go, too
    if args.threads:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)  # of the new processes
        torch.set_num_threads(args.threads)
    phases = Phases(args.phases)
    if args.phases:
        os.environ["PHASES"] = "1"  # of the ranks
    sizes = args.mb or ([400] if args.quick else [400, 2000])
    began = time.monotonic()
    rows: list[dict[str, object]] = []
    sharded: list[dict[str, Any]] = []
    with ExitStack() as ends:
        disk = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="loom-bench-")))
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
        memory = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="loom-bench-", dir=shared)))
        s3 = None
        if not args.no_s3 and available():
            os.environ.update(ends.enter_context(s3_server("bench")))
            s3 = "s3://bench/checkpoints"
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        ends.callback(dist.destroy_process_group)
        for megabytes in sizes:
            rounds = args.rounds or (2 if args.quick or megabytes > 1000 else 4)
            rows += run(megabytes, rounds, disk, memory, s3, phases, args.only)
            gc.collect()  # the ranks need the memory
            if not args.only:
                sharded += run_sharded(megabytes, rounds, disk, memory)
            gc.collect()
    notes = [
        "blocking_s: the training loop waits; copies: the same in units of one warm copy of the state, the",
        "best of many without pauses; paused_copies: of one that was made after a pause, as the saves are",
        "restore_s: from the fastest place the method has: the memory tier where there is one",
        "new_process_s: the same where the optimizer has no state yet, which DCP has to make first; of the",
        f"memory tier, DCP save and the limit medians of {IN_TURN}, in turn",
        "shared_copy_s: one copy out of shared memory that is not mapped yet, the least a restore can do",
        "one process; every save is durable (fsync) when total_s has passed",
        *compare(rows),
        *compare_sharded(sharded),
        f"the run took {time.monotonic() - began:.0f} s",
    ]
    emit("checkpoints", rows + sharded, notes, args.json)


if __name__ == "__main__":
    main()
