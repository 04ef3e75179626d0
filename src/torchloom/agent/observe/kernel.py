"""What the kernel counts for a process: its state, CPU time, time in the run queue, I/O, its children.

Reads /proc and judges nothing. A process that is gone has no counts. Everything is cheap enough to be read
twice a second for every worker, except `tree` and `waits_on`: those are for the few under suspicion.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from torchloom.model.windows import WaitsOn

_MOST_THREADS = 256
_MOST_PROCESSES = 64
_FUTEX, _SLEEPS = {
    "x86_64": (202, frozenset({35, 230})),
    "aarch64": (98, frozenset({101, 115})),
}.get(platform.machine(), (-1, frozenset[int]()))
"""Numbers of futex, and of nanosleep and clock_nanosleep."""
_OURS = ("pt_gloo", "gloo", "pt_nccl", "nccl", "pt_tcpstore", "pt_store")
"""Beginnings of the names of c10d's own threads: they wait for peers, who are waiting themselves."""


@dataclass(frozen=True)
class Counts:
    """Of one process. Sums go over the threads there are now, so they may shrink when one ends."""

    state: str
    cpu_ns: int
    run_delay_ns: int
    """Time in which a thread wanted a CPU and had none."""
    main_runs: int
    """How often the main thread was put on a CPU: unchanged only if that thread did nothing at all."""
    threads: int


def counts(pid: int) -> Counts | None:
    """None when there is no such process."""
    state = state_of(pid)
    if not state:
        return None
    cpu = delay = main_runs = threads = 0
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    for task in tasks[:_MOST_THREADS]:
        fields = _read(f"/proc/{pid}/task/{task}/schedstat").split()
        if len(fields) < 3:
            continue
        threads += 1
        cpu += int(fields[0])
        delay += int(fields[1])
        if task == str(pid):
            main_runs = int(fields[2])
    return Counts(state, cpu, delay, main_runs, threads)


def state_of(pid: int) -> str:
    """One letter; empty when there is no such process."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split(maxsplit=1)
    return fields[0].decode() if fields else ""


@dataclass(frozen=True)
class Tree:
    """A process and all its children, as far as their counters tell whether anything goes on in them."""

    pids: tuple[int, ...]
    cpu_ns: int
    io_bytes: int
    """Read and written through system calls, files, pipes and sockets alike."""
    main_runs: int
    """Of the first process."""


def tree(pid: int) -> Tree | None:
    """Look at everything at once; None when the process is gone."""
    first = counts(pid)
    if first is None:
        return None
    pids = [pid]
    for one in pids:  # grows while it is walked
        pids += [child for child in _children(one) if child not in pids]
        if len(pids) >= _MOST_PROCESSES:
            break
    found = {one: counts(one) for one in pids[1:]}
    cpu_ns = first.cpu_ns + sum(c.cpu_ns for c in found.values() if c is not None)
    return Tree(tuple(sorted(pids)), cpu_ns, sum(map(_io, pids)), first.main_runs)


def waits_on(pids: tuple[int, ...]) -> WaitsOn:
    """What the threads of these processes wait for.

    `lock` only when every thread is seen to wait for a lock without a time limit, c10d's own excepted: then
    nothing outside can wake any of them. `timer` when one of them sleeps. Else nobody can say.
    """
    locked = False
    for pid in pids:
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return "unknown"
        if len(tasks) > _MOST_THREADS:
            return "unknown"
        for task in tasks:
            where = f"/proc/{pid}/task/{task}"
            if _read(f"{where}/comm").decode("utf-8", "replace").startswith(_OURS):
                continue
            call = _read(f"{where}/syscall").split()
            if len(call) < 7 or not call[0].isdigit():
                return "unknown"  # running, or we may not look
            number = int(call[0])
            if number in _SLEEPS:
                return "timer"
            if number != _FUTEX or int(call[4], 16) != 0:
                return "unknown"
            locked = True
    return "lock" if locked else "unknown"


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks[:_MOST_THREADS]:
        found += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
    return found


def _io(pid: int) -> int:
    total = 0
    for line in _read(f"/proc/{pid}/io").splitlines()[:2]:
        total += int(line.partition(b":")[2])
    return total


def _read(path: str) -> bytes:
    """Empty when it is gone or not ours to read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
