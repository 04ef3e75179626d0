"""The route that shows what every rank costs its job, live."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from torchloom.api.find import job_of
from torchloom.api.ports import Control
from torchloom.core.detect.cost import RankCost, per_rank
from torchloom.core.recovery.incidents import is_stuck


class RankCostView(BaseModel):
    rank: int
    node: str
    role: str
    """Ranks of one role are compared with each other."""
    steps: int
    """How many of the newest steps were looked at."""
    own_s: float
    """Of a step, without waiting for other ranks."""
    peers_s: float | None
    """The same for the other ranks of the role; null when there are none."""
    slowest_s: float | None
    """The same for the slowest of the other ranks in each step: without this rank the job waits for it."""
    data_s: float
    waits_s: float
    lost_steps_per_s: float
    """What the job would gain if this rank were as fast as the slowest of the others."""
    steps_per_s: float
    """The job's speed, from the steps of this role."""
    without_steps_per_s: float
    """The speed that the job would then have."""
    lost_share: float
    """The same as a share of the speed that the job would then have."""


class Stragglers(BaseModel):
    job: str
    generation: int
    steps_per_s: float | None
    """From the newest steps, also while the job is stalled. Null until steps of all ranks are known."""
    stands: str
    """The open incident that stalls all ranks; empty: none does."""
    missing: list[int]
    """Running ranks without telemetry in the last two seconds."""
    ranks: list[RankCostView]


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["jobs"])

    @router.get("/jobs/{job}/stragglers", operation_id="stragglers")
    async def stragglers(job: str) -> Stragglers:
        """What every rank costs the job now: in steps per second and as a share of its speed."""
        found = job_of(control, job)
        windows = control.windows(job)
        nodes = {window.rank: window.node for window in windows}
        costs = per_rank(windows)
        return Stragglers(
            job=job,
            generation=found.generation,
            steps_per_s=min((one.cost.steps_per_s for one in costs), default=None),
            stands=next((i for i in reversed(found.incidents) if _holds_up(control, i)), ""),
            missing=[w.ref.rank for w in found.workers if w.alive and w.ref.rank not in nodes],
            ranks=[view_of(one, nodes[one.rank]) for one in costs],
        )

    return router


def _holds_up(control: Control, incident: str) -> bool:
    known = control.fleet.incidents.get(incident)
    return known is not None and is_stuck(known)


def view_of(one: RankCost, node: str) -> RankCostView:
    return RankCostView(
        rank=one.rank,
        node=node,
        role=one.role,
        steps=one.steps,
        own_s=one.own_s,
        peers_s=one.peers_s,
        slowest_s=one.slowest_s,
        data_s=one.data_s,
        waits_s=one.waits_s,
        lost_steps_per_s=one.cost.lost_steps_per_s,
        steps_per_s=one.cost.steps_per_s,
        without_steps_per_s=one.cost.without_steps_per_s,
        lost_share=one.cost.share,
    )
