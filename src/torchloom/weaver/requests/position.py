"""Asks agents for the present progress of a job, so that a change need not begin with that question.

A guess that saves a round of messages; no decision depends on it: an agent that does not answer at once is
not waited for, and the ranks refuse a step that is past.
"""

from __future__ import annotations

import asyncio

from torchloom.bus.protocol import Bus
from torchloom.errors import LoomError
from torchloom.model.fleet import Job, JobState
from torchloom.model.messages import RankSteps, ReadSteps, StepsReading
from torchloom.model.worker import WorkerRef
from torchloom.wire import codec, subjects

ASK_FOR_S = 0.05
STORING_S = 0.004
"""What it usually takes from this answer until the change is in the stream, which is when it counts."""


async def position_of(bus: Bus, job: Job) -> float:
    """Steps that the foremost rank has made, plus the share of the one in progress; 0 if unknown."""
    if job.state is not JobState.RUNNING or job.paused:
        return 0.0
    refs: dict[str, list[WorkerRef]] = {}
    for worker in job.workers:
        refs.setdefault(worker.node, []).append(worker.ref)
    try:
        async with asyncio.timeout(ASK_FOR_S):
            answers = await asyncio.gather(*(_ask(bus, node, tuple(mine)) for node, mine in refs.items()))
    except (TimeoutError, LoomError, codec.DecodeError):
        return 0.0
    return foremost([rank for answer in answers for rank in answer.ranks], len(job.workers))


async def _ask(bus: Bus, node: str, refs: tuple[WorkerRef, ...]) -> StepsReading:
    data = codec.encode(ReadSteps(refs))
    return codec.decode_steps_reading(await bus.request(subjects.query(node), data, timeout_s=ASK_FOR_S))


def foremost(ranks: list[RankSteps], world: int) -> float:
    """0 unless every rank is known to step: one that does not would not answer in time either."""
    if len(ranks) != world or any(r.paused or not r.steps or r.step_s <= 0 for r in ranks):
        return 0.0
    return max(r.steps + min(r.since_s / r.step_s, 1.0) + STORING_S / r.step_s for r in ranks)
