"""Windows of a job of any size, made directly: for the cost of a look, and to compare two ways of judging.

The simulator plays every collective of every rank and takes minutes for 16,384 of them. Here only the
windows are made: 32 completed steps, in which a share of the ranks is slow, and after which a share may be
hung. The same seed makes the same windows.
"""

from __future__ import annotations

import random

from msgspec import Struct
from msgspec.structs import replace

from torchloom.core.detect.window import Collective, GroupPosition, ProcessFacts, RankWindow, StepTimes
from torchloom.model.windows import PartHash

STEP_S = 0.3
_OWN_NS = 200_000_000
_TENSOR = 8
_NODE = 8


class WideJob(Struct, frozen=True, kw_only=True):
    """What the windows show."""

    ranks: int
    seed: int = 0
    steps: int = 32
    slow: float = 0.0
    """Share of the ranks that take `factor` times as long for themselves."""
    factor: float = 1.5
    hung: float = 0.0
    """Share of the ranks that did not enter the last collective, which all others wait in …"""
    hung_s: float = 0.0
    """… for so long."""
    noise: float = 0.02
    broken: float = 0.0
    """Share of the ranks whose loss is not a number."""
    throttled: float = 0.0
    """Share of the ranks that a CPU quota stops for half of their excess."""


def windows(job: WideJob, first_step: int = 1) -> tuple[RankWindow, ...]:
    """One window of each rank after `job.steps` steps, the first of which is `first_step`."""
    chance = random.Random(job.seed)
    kinds = [
        (chance.random() < job.slow, chance.random() < job.hung, chance.random() < job.broken)
        for _ in range(job.ranks)
    ]
    throttled = [slow and chance.random() < job.throttled for slow, _, _ in kinds]
    own = [
        [
            round(_OWN_NS * (job.factor if slow else 1.0) * chance.lognormvariate(0, job.noise))
            for _ in range(job.steps)
        ]
        for slow, _, _ in kinds
    ]
    slowest = [max(times) + 5_000_000 for times in zip(*own, strict=True)]
    anybody_hung = any(hung for _, hung, _ in kinds)
    last = first_step + job.steps - 1
    hashes = tuple(
        PartHash(step, 1, part, 2, step * 7 + part)
        for step in range(max(10, last - 40) // 10 * 10, last + 1, 10)
        for part in (0, 1)
    )
    found = []
    for rank, (_, hung, broken) in enumerate(kinds):
        offset_ns = 10**12 * (1 + rank // _NODE)
        now_ns = offset_ns + round(1e9 * (job.hung_s + STEP_S * (last + 1)))
        entered_ns = now_ns - round(1e9 * job.hung_s)
        made = 3 * last
        steps = tuple(
            StepTimes(
                first_step + n, slowest[n], 1_000_000, slowest[n] - own[rank][n],
                ((0, first_step + n), (1, 3 * (first_step + n))),
            )
            for n in range(job.steps)
        )  # fmt: skip
        waits = anybody_hung and not hung
        groups = (
            GroupPosition("world", job.ranks, rank, last + waits, last, 5_000_000, 600.0),
            GroupPosition(
                f"tp.{rank // _TENSOR}", min(_TENSOR, job.ranks), rank % _TENSOR, made, made, 1_000_000, 600.0
            ),
        )
        inside = (Collective("all_reduce", "world", last + 1, 25_000_000, "float32", entered_ns),)
        found.append(
            RankWindow(
                rank=rank,
                node=f"n{rank // _NODE}",
                device=f"GPU-{rank:08x}",
                taken_ns=now_ns,
                started_ns=offset_ns,
                last_activity_ns=entered_ns,
                steps_done=last,
                steps=steps,
                groups=groups,
                collectives=inside if waits else (),
                process=ProcessFacts(
                    state="S" if waits else "R",
                    cpu_ns_per_step=own[rank][-1] // 2,
                    run_delay_ns_per_step=2_000_000,
                    throttled_ns_per_step=50_000_000 if throttled[rank] else 0,
                ),
                work_per_step=1000.0,
                values={"loss": float("nan") if broken else 2.0 + rank % 7 / 100, "grad_norm": 1.0},
                values_step=last,
                hashes=hashes,
            )
        )
    return tuple(found)


def newest(window: RankWindow, steps: int) -> RankWindow:
    """The same window as an agent sends it a moment later: only the newest steps and hashes are in it."""
    first = window.steps[-steps].step
    return replace(
        window, steps=window.steps[-steps:], hashes=tuple(h for h in window.hashes if h.step >= first)
    )
