"""The routes that begin a job again: with another number of workers, or as it is."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from torchloom.api.access_guard import caller
from torchloom.api.find import job_of
from torchloom.api.ports import Control
from torchloom.api.schemas.bodies import Strict
from torchloom.model.job import MAX_WORKERS


class ScaleRequest(Strict):
    workers: int = Field(ge=1, le=MAX_WORKERS)
    dry_run: bool = False
    """Only say whether it could be done now; nothing is changed."""


class ScaleAccepted(BaseModel):
    job: str
    workers: int
    generation: int
    """The generation that is being ended; a later one has the new number of workers."""


class RestartRequest(Strict):
    max_steps: int | None = Field(default=None, ge=1, le=2**53)
    """A new last training step, for a job that has ended by it."""


class RestartAccepted(BaseModel):
    job: str
    generation: int
    """The generation before the restart."""


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["jobs"])

    @router.post("/jobs/{job}/scale", status_code=202, operation_id="scale")
    async def scale(job: str, body: ScaleRequest, request: Request) -> ScaleAccepted:
        """Continue with another number of workers: the job stops at a step boundary and restarts from its
        newest checkpoint. 409 outside its min_workers and max_workers, or if there is no room."""
        generation = job_of(control, job).generation
        await control.scale(job, body.workers, caller(request), dry_run=body.dry_run)
        return ScaleAccepted(job=job, workers=body.workers, generation=generation)

    @router.post("/jobs/{job}/restart", status_code=202, operation_id="restart")
    async def restart(job: str, body: RestartRequest, request: Request) -> RestartAccepted:
        """Begin again from the newest checkpoint: a job that has ended, or one that runs (it stops at a step
        boundary first). 409 if its new last step is past."""
        generation = job_of(control, job).generation
        await control.restart(job, caller(request), body.max_steps)
        return RestartAccepted(job=job, generation=generation)

    return router
