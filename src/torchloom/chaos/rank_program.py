"""What one simulated rank does: a generator of actions that reads like a training loop. Knows no time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from torchloom.chaos.scenario import Benign, Parallelism, ScenarioFault

STEP_S = 0.3
"""Work of one rank in one step; a pipeline divides it into micro-batches."""
TRANSFER_S = 0.02
"""Of a large bucket in a healthy group."""
_LARGE, _SMALL, _ACTIVATION = 25_000_000, 4_000, 1_000_000


class Work(NamedTuple):
    """Be busy for a while: `state`, `waits_on` and `location` are what an observer would see."""

    seconds: float
    kind: str = "compute"
    state: str = "R"
    waits_on: str = "unknown"
    location: str = "train_step() at train.py:40"
    phase: str = "training"
    delayed: float = 0.0
    """Seconds of it in which it wanted a CPU and had none."""


class Enter(NamedTuple):
    group: str
    op: str
    bytes: int
    waited: bool = True
    stalls: bool = False


class SendTo(NamedTuple):
    peer: int


class Receive(NamedTuple):
    peer: int


class Join(NamedTuple):
    """Wait for all asynchronous collectives."""


class EndStep(NamedTuple):
    data_wait_s: float
    cpu_s: float
    delay_s: float


class Struck(NamedTuple):
    """From here on this rank has its fault. The second of two ranks may never come to its own."""


class Die(NamedTuple):
    pass


class Stop(NamedTuple):
    """Never do anything again."""

    state: str
    waits_on: str
    location: str


Action = Work | Enter | SendTo | Receive | Join | EndStep | Struck | Die | Stop

_STUCK = {
    "stopped": Stop("T", "unknown", "tokenize() at data.py:88"),
    "lock": Stop("S", "lock", "acquire() at queue.py:12"),
    "loop": Stop("R", "unknown", "retry() at loss.py:7"),
    "read": Stop("S", "outside", "fetch() at data.py:120"),
    "disk": Stop("D", "outside", "load() at data.py:45"),
}
_PAUSES = {
    "eval": ("R", "unknown", "evaluate() at eval.py:10"),
    "save": ("D", "outside", "save() at checkpoint.py:31"),
    "read": ("S", "outside", "fetch() at data.py:120"),
    "recompile": ("R", "unknown", "compile() at model.py:5"),
    "sleep": ("S", "timer", "backoff() at retry.py:9"),
    "pool": ("S", "unknown", "result() at pool.py:77"),
}
AT_A_PLACE = frozenset({"crash", "hang", "pipeline-hang", "left-out-send", "desync", "skip"})
"""Faults at one place of a step; the others concern whole steps."""
CHANGING = frozenset({"evaluate() at eval.py:10", "save() at checkpoint.py:31", "compile() at model.py:5"})
"""Here CPU time or I/O counters grow while the stack stays."""


def rank_program(
    rank: int, shape: Parallelism, fault: ScenarioFault | None, benign: Benign, seed: int
) -> Iterator[Action]:
    """The endless life of one rank."""
    chance = random.Random(seed * 1_000_003 + rank)
    d, p, t = shape.place(rank)
    mine = fault if fault is not None and rank in fault.ranks else None
    micro = 2 * shape.pp if shape.pp > 1 else 1
    dp, tp = f"dp.{p}.{t}", f"tp.{d}.{p}"
    before = shape.rank(d, p - 1, t) if p > 0 else -1
    after = shape.rank(d, p + 1, t) if p < shape.pp - 1 else -1
    step = 0
    drift = 0.0
    of_slow_stage = (
        fault is not None and fault.kind == "slow-stage" and p in {shape.place(r)[1] for r in fault.ranks}
    )
    if of_slow_stage:
        yield Struck()
    if fault is not None and fault.kind == "never-starts":
        if mine:
            yield _STUCK[mine.stuck]
        yield Enter("world", "barrier", 0)
    while True:
        step += 1
        on = fault is not None and step >= fault.step
        now = fault is not None and step == fault.step
        drift = 0.8 * drift + 0.2 * chance.gauss(0, 2 * benign.noise)
        shared = random.Random(seed * 7919 + step)
        length = max(0.3, 1 + benign.shared_lengths * shared.uniform(-1, 1))
        length *= max(0.3, 1 + benign.own_lengths * chance.gauss(0, 1))
        factor, delay, data = 1.0, 0.0, 0.004
        if on and fault is not None:
            if fault.kind == "imbalance":
                length *= chance.lognormvariate(0, 0.35)
            if fault.kind == "slow-all" or of_slow_stage:
                factor = fault.factor
            if mine and mine.kind in ("slow-compute", "heavy-rank"):
                factor = mine.factor
            if mine and mine.kind == "slow-host":
                delay = mine.factor - 1
            if mine and mine.kind == "slow-data":
                data += (mine.factor - 1) * STEP_S
        crowd = 0.0
        if benign.oversubscribed > 1:
            crowd = (benign.oversubscribed - 1) * chance.uniform(0.85, 1.15)
        cpu = late = 0.0

        def piece(part: float) -> Work:
            nonlocal cpu, late
            noise = 1 + drift + chance.gauss(0, benign.noise)  # noqa: B023  # called within this step only
            busy = max(0.2, noise) * part * STEP_S * length * factor  # noqa: B023
            held = busy * (delay + crowd)  # noqa: B023
            cpu += busy
            late += held
            return Work(busy + held, delayed=held)

        if now and mine and mine.kind not in AT_A_PLACE:
            yield Struck()
        if p == 0:
            yield Work(data, "data", "S", "outside", "next() at loader.py:60", "data-wait")
        if benign.garbage_every and chance.random() < 1 / benign.garbage_every:
            yield Work(chance.uniform(0.05, 0.3))
        for pause in benign.pauses:
            if pause.rank == rank and pause.step == step:
                state, waits_on, where = _PAUSES[pause.kind]
                yield Work(pause.seconds, "pause", state, waits_on, where)
        if benign.eval_every and step % benign.eval_every == 0 and (not benign.announced or rank == 0):
            phase = "eval" if benign.announced else "training"
            yield Work(benign.eval_s, "pause", "R", "unknown", "evaluate() at eval.py:10", phase)
        if benign.checkpoint_every and step % benign.checkpoint_every == 0 and rank == 0:
            yield Work(benign.checkpoint_s, "pause", "D", "outside", "save() at checkpoint.py:31")
        if now and mine and mine.kind == "crash":
            yield Die()
        for number in range(micro):
            if before >= 0:
                yield Receive(before)
            yield piece(1 / 3 / micro)
            if shape.tp > 1:
                yield Enter(tp, "all_reduce", _ACTIVATION)
            if now and mine and mine.kind == "pipeline-hang" and number == 1:
                yield _STUCK[mine.stuck]
            # The last one: what comes after it would only be taken for it otherwise.
            forgets = now and mine is not None and mine.kind == "left-out-send" and number == micro - 1
            if forgets:
                yield Struck()
            elif after >= 0:
                yield SendTo(after)
        for _ in range(micro):
            if after >= 0:
                yield Receive(after)
            yield piece(0.5 / micro)
            if shape.tp > 1:
                yield Enter(tp, "all_reduce", _ACTIVATION)
            if before >= 0:
                yield SendTo(before)
        skips = now and mine is not None and mine.kind == "skip"
        if skips:
            yield Struck()
        else:
            yield Enter(dp, "all_reduce", _LARGE, False)
        yield piece(1 / 6)
        if now and mine and mine.kind == "hang":
            yield _STUCK[mine.stuck]
        if now and fault is not None and fault.kind == "deadlock" and dp == _dp_of(shape, fault.rank):
            order = (("world", "barrier", 0), (dp, "all_reduce", _SMALL))
            for group, op, size in order if d % 2 else order[::-1]:
                yield Enter(group, op, size)
        elif now and fault is not None and fault.kind == "deadlock":
            yield Enter("world", "barrier", 0)
        odd = now and mine is not None and mine.kind == "desync"
        stalls = now and fault is not None and fault.kind == "stall" and dp == _dp_of(shape, fault.rank)
        if odd:
            yield Struck()
        if not skips:
            yield Enter(dp, "all_reduce", _SMALL if odd else _LARGE, False, stalls)
        yield Join()
        # After a skipped reduction this one would be a circle of waiting, which is another fault.
        if step % 10 == 0 and (fault is None or fault.kind != "skip"):
            yield Enter("world", "all_reduce", _SMALL)
        yield piece(0.02)
        yield EndStep(data if p == 0 else 0.0, cpu, late)


def _dp_of(shape: Parallelism, rank: int) -> str:
    _, p, t = shape.place(rank)
    return f"dp.{p}.{t}"


def changing(location: str) -> bool:
    """Whether somebody who watches a rank at this place sees its counters grow."""
    return location in CHANGING
