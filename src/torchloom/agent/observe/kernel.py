"""What the kernel counts for a process: its state, CPU time, time in the run queue, I/O, its children.

Reads /proc and judges nothing. A process that is gone has no counts. Everything is cheap enough to be read
twice a second for every worker, except `tree`, which is for the few under suspicion. What a process waits
for is in kernel_waits.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from torchloom.agent.observe.kernel_files import read_small

_MOST_THREADS = 256
_MOST_PROCESSES = 64


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
        fields = read_small(f"/proc/{pid}/task/{task}/schedstat").split()
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
    fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split(maxsplit=1)
    return fields[0].decode() if fields else ""


@dataclass(frozen=True)
class Tree:
    """Counters of a process and all its children that show whether any of them is active."""

    root: int
    pids: tuple[int, ...]
    cpu_ns: int
    io_bytes: int
    """Read and written through system calls, files, pipes and sockets alike."""
    main_runs: int
    """Of the first process."""
    major_faults: int = 0
    """Pages that had to be read from a disk, by all of them: swapping is work, too."""
    run_delay_ns: int = 0
    """For how long threads of the first process wanted a core and had none."""


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
    return Tree(
        root=pid,
        pids=tuple(sorted(pids)),
        cpu_ns=cpu_ns,
        io_bytes=sum(map(_io, pids)),
        main_runs=first.main_runs,
        major_faults=sum(map(_major_faults, pids)),
        run_delay_ns=first.run_delay_ns,
    )


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks[:_MOST_THREADS]:
        found += map(int, read_small(f"/proc/{pid}/task/{task}/children").split())
    return found


def _major_faults(pid: int) -> int:
    fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[9]) if len(fields) > 9 else 0


def _io(pid: int) -> int:
    total = 0
    for line in read_small(f"/proc/{pid}/io").splitlines()[:2]:
        total += int(line.partition(b":")[2])
    return total


def per_step(counted: Sequence[tuple[int, Counts]]) -> tuple[int, int]:
    """CPU time and run-queue time of a step, over the last seconds."""
    if len(counted) < 2:
        return 0, 0
    (before, old), (now, new) = counted[0], counted[-1]
    if now <= before:
        return 0, 0
    steps = now - before
    return max(0, new.cpu_ns - old.cpu_ns) // steps, max(0, new.run_delay_ns - old.run_delay_ns) // steps
