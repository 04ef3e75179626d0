"""Looks up what a path names, or says in one sentence that it does not exist."""

from __future__ import annotations

from difflib import get_close_matches

from torchloom.api.ports import Control
from torchloom.errors import NotFound, UsageError
from torchloom.model.fleet import Job
from torchloom.model.ids import check_token


def job_of(control: Control, job: str) -> Job:
    check_token(job, "job id")
    found = control.fleet.jobs.get(job)
    if found is None:
        near = get_close_matches(job, list(control.fleet.jobs), n=1)
        raise NotFound(
            f"There is no job {job!r}", hint=f"did you mean {near[0]}?" if near else "see `loom ps`"
        )
    return found


def ranks_of(job: Job, rank: int | None) -> list[int]:
    """The ranks asked for: one, or all."""
    world = len(job.workers) or job.spec.world_size
    if rank is None:
        return list(range(world))
    if not 0 <= rank < world:
        raise UsageError(f"Job {job.id} has ranks 0 to {world - 1}, not {rank}.")
    return [rank]
