"""Routes of a job's numbers: over time (series, ranks over time), and of all its ranks now, in columns.

Columns instead of records, because a job may have thousands of ranks and a page asks every second.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from torchloom.api.find import job_of
from torchloom.api.ports import Control
from torchloom.core.detect.cost import RankCost, per_rank
from torchloom.core.history.job_history import PHASES
from torchloom.core.history.series import Lanes

What = Literal["own", "wait", "data", "phase"]
FRESH_S = 0.5
"""How long one computed view of all ranks is reused for several pages."""

Since = Annotated[float, Query(ge=0, le=1e9)]


class SeriesView(BaseModel):
    """One series; null where nothing was recorded."""

    name: str
    """`step`, `steps_per_s`, `step_s`, `step_s_p95`, `metric:NAME` of loom.log, or `setting:ADDRESS`."""
    width_s: float
    """Of one point."""
    at_s: list[float]
    """Where each point begins, in seconds since 1970."""
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]


class JobSeries(BaseModel):
    job: str
    as_of_ns: int
    names: list[str]
    """Names of all series of this job."""
    series: list[SeriesView]


class RankSeries(BaseModel):
    """A value of all ranks over time, the highest of each cell."""

    job: str
    what: What
    as_of_ns: int
    ranks: int
    ranks_per_row: int
    width_s: float
    """Of one column."""
    at_s: list[float]
    rows: list[list[float | None]]
    """Seconds of a step, by row of ranks; of `phase`, places in `phases`."""
    phases: list[str]


class RanksNow(BaseModel):
    """All ranks at this moment: every list has one entry for each of `rank`."""

    job: str
    generation: int
    as_of_ns: int
    nodes: list[str]
    phases: list[str]
    rank: list[int]
    node: list[int]
    """Place in `nodes`."""
    replica: list[int]
    alive: list[bool]
    step: list[int]
    phase: list[int]
    """Place in `phases`."""
    idle_s: list[float]
    own_s: list[float | None]
    """Of a step, without waiting for other ranks; null while no steps of all ranks are known."""
    wait_s: list[float | None]
    data_s: list[float | None]
    lost_share: list[float | None]
    """Share of the job's speed that is lost to this rank."""


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["jobs"])
    costs = _Costs(control)

    @router.get("/jobs/{job}/series", operation_id="series")
    async def series(
        job: str,
        name: Annotated[list[str] | None, Query(max_length=64)] = None,
        last_s: Since = 0.0,
        points: Annotated[int, Query(ge=2, le=2000)] = 300,
    ) -> JobSeries:
        """Numbers of a job over time: of the last `last_s` seconds, or of its whole life if that is 0.

        Each is merged into at most `points` points with mean, lowest and highest. Without `name`, all.
        """
        job_of(control, job)
        history, now_s = await control.history(job), time.time()
        since_s = now_s - last_s if last_s else 0.0
        chosen = [n for n in history.tracks if name is None or n in name]
        made = []
        for one in chosen:
            lanes = history.tracks[one].best(since_s)
            found = lanes.read(since_s, points)
            made.append(
                SeriesView(
                    name=one,
                    width_s=lanes.width_s * lanes.per_point(since_s, points),
                    at_s=[bucket.at_s for bucket in found],
                    mean=[_rounded(bucket.mean) for bucket in found],
                    low=[_rounded(bucket.low) for bucket in found],
                    high=[_rounded(bucket.high) for bucket in found],
                )
            )
        return JobSeries(job=job, as_of_ns=int(now_s * 1e9), names=sorted(history.tracks), series=made)

    @router.get("/jobs/{job}/series/ranks", operation_id="rankSeries")
    async def rank_series(
        job: str,
        what: What = "own",
        last_s: Since = 0.0,
        columns: Annotated[int, Query(ge=2, le=400)] = 120,
        rows: Annotated[int, Query(ge=1, le=2048)] = 512,
    ) -> RankSeries:
        """Every rank over time: own time of a step, waiting for others, waiting for data, or its phase.

        With more ranks than `rows`, a row covers several ranks and shows the highest of them.
        """
        job_of(control, job)
        history, now_s = await control.history(job), time.time()
        since_s = now_s - last_s if last_s else 0.0
        if history.ranks is None:
            lanes = Lanes(1.0, 2, halves=False)
        else:
            lanes = history.ranks.best(since_s)
        cells, at_s = await asyncio.to_thread(_cells, lanes.snapshot(), what, since_s, columns, rows)
        return RankSeries(
            job=job,
            what=what,
            as_of_ns=int(now_s * 1e9),
            ranks=lanes.lanes if history.ranks is not None else 0,
            ranks_per_row=lanes.lanes_per_row(rows),
            width_s=lanes.width_s * lanes.per_point(since_s, columns),
            at_s=at_s,
            rows=cells,
            phases=list(PHASES),
        )

    @router.get("/jobs/{job}/ranks", operation_id="ranks")
    async def ranks(job: str) -> RanksNow:
        """All ranks now, in columns."""
        found, pulses = job_of(control, job), control.pulse(job)
        cost = {one.rank: one for one in costs.of(job)}
        nodes = sorted({worker.node for worker in found.workers})
        phases = sorted({pulse.phase for pulse in pulses.values()} | {""})
        node_at, phase_at = {n: i for i, n in enumerate(nodes)}, {p: i for i, p in enumerate(phases)}
        made = RanksNow(
            job=job, generation=found.generation, as_of_ns=time.time_ns(), nodes=nodes, phases=phases,
            rank=[], node=[], replica=[], alive=[], step=[], phase=[], idle_s=[], own_s=[], wait_s=[],
            data_s=[], lost_share=[],
        )  # fmt: skip
        for worker in found.workers:
            rank = worker.ref.rank
            pulse, one = pulses.get(rank), cost.get(rank)
            made.rank.append(rank)
            made.node.append(node_at[worker.node])
            made.replica.append(worker.replica)
            made.alive.append(worker.alive)
            step = pulse.training_step if pulse and pulse.training_step is not None else None
            made.step.append(step if step is not None else max(worker.steps, pulse.steps if pulse else 0))
            made.phase.append(phase_at[pulse.phase if pulse and worker.alive else ""])
            made.idle_s.append(round(pulse.idle_s, 2) if pulse else 0.0)
            made.own_s.append(_rounded(one.own_s) if one else None)
            made.wait_s.append(_rounded(one.waits_s) if one else None)
            made.data_s.append(_rounded(one.data_s) if one else None)
            made.lost_share.append(round(one.cost.share, 4) if one else None)
        return made

    return router


class _Costs:
    """What every rank costs, computed once for all pages that ask at about the same time."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._made: dict[str, tuple[float, list[RankCost]]] = {}

    def of(self, job: str) -> list[RankCost]:
        now_s = time.monotonic()
        known = self._made.get(job)
        if known is None or now_s - known[0] > FRESH_S:
            if len(self._made) > 64:
                self._made.clear()
            known = self._made[job] = (now_s, per_rank(self._control.windows(job)))
        return known[1]


def _cells(
    lanes: Lanes, what: What, since_s: float, columns: int, rows: int
) -> tuple[list[list[float | None]], list[float]]:
    at_s = lanes.times(since_s, columns)
    match what:
        case "own":
            found = lanes.matrix(lanes.high, since_s, columns, rows)
        case "wait" | "data":
            place = 0 if what == "wait" else 1
            values = lanes.extras[place] if lanes.extras else lanes.mean
            found = lanes.matrix(values, since_s, columns, rows)
        case "phase":
            found = lanes.matrix(lanes.codes, since_s, columns, rows)
    return [[_rounded(value) for value in row] for row in found], at_s


def _rounded(value: float) -> float | None:
    """Five digits are enough for a picture."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
