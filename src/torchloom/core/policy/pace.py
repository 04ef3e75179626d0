"""Measures a job whose ranks take uneven shares, and says what follows for the shares. Asks for nothing.

A rank's own time is its step without its waits. With shares that fit, every rank takes the same time; a rank
whose time grows less than its samples is as fast as the others again.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from torchloom.core.detect.own_times import Peers, typical_step_ns
from torchloom.core.detect.robust import median
from torchloom.core.detect.window import RankWindow
from torchloom.model.events import PaceMeasured
from torchloom.model.fleet import Job
from torchloom.model.policy import Balance

STEPS = 8
"""Steps with the present shares that a measurement needs."""
SETTLES = 2
"""Steps after a change that do not count: batches are read anew."""
OFF = 1.12
"""Shares whose times differ by less than this are left alone …"""
RECOVERED = 1.12
"""… and so little slower per sample is as fast as the others."""
MOST_CHANGES = 5
FINER = 0.02
"""A smaller correction is none."""


def measure(job: Job, windows: Sequence[RankWindow]) -> PaceMeasured | None:
    """None while there is nothing to measure."""
    balance = job.balance
    if balance is None or balance.back or not balance.since_step or balance.asked != balance.weights:
        return None
    same = balance.generation == job.generation
    first = balance.since_step + SETTLES if same else SETTLES
    fresh = Peers.of([replace(w, steps=tuple(s for s in w.steps if s.step >= first)) for w in windows])
    if not all(w.steps for w in fresh) or fresh.shared < STEPS:
        return None
    own = fresh.typical
    others = [own_ns for rank, own_ns in own.items() if rank not in balance.weights]
    if not others or not all(rank in own or not same for rank in balance.weights):
        return None
    return PaceMeasured(
        job=job.id,
        generation=job.generation,
        operation=balance.operation,
        own_s={rank: own[rank] / 1e9 for rank in balance.weights if rank in own},
        peers_s=median(others) / 1e9,
        step_s=typical_step_ns(fresh) / 1e9,
    )


def is_news(balance: Balance, found: PaceMeasured) -> bool:
    """Whether the shares would be changed because of it, or nothing was measured since they were."""
    if balance.measured != balance.operation or balance.generation != found.generation:
        return True
    return bool(recovered(balance, found)) or corrected(balance, found, 0.0) != balance.weights


def recovered(balance: Balance, found: PaceMeasured) -> list[int]:
    """Ranks that are as fast as the others per sample."""
    return [rank for rank in balance.weights if _slower(balance, found, rank) < RECOVERED]


def corrected(balance: Balance, found: PaceMeasured, least: float) -> dict[int, float]:
    """The weights with which all ranks would take the same time, or the present ones if these are good."""
    asked = dict(balance.weights)
    for rank in recovered(balance, found):
        del asked[rank]
    if balance.changes >= MOST_CHANGES:
        return asked
    for rank, weight in list(asked.items()):
        ratio = found.own_s.get(rank, 0.0) / found.peers_s if found.peers_s > 0 else 1.0
        better = round(min(1.0, max(least, 1 / _slower(balance, found, rank))), 3)
        if not 1 / OFF < ratio < OFF and abs(better - weight) > FINER:
            asked[rank] = better
    return asked


def _slower(balance: Balance, found: PaceMeasured, rank: int) -> float:
    """How much longer a sample takes there."""
    ratio = found.own_s.get(rank, 0.0) / found.peers_s if found.peers_s > 0 else 0.0
    return ratio / balance.weights[rank]
