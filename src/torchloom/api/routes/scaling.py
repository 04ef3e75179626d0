"""The route that changes how many workers a job has."""

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


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["jobs"])

    @router.post("/jobs/{job}/scale", status_code=202, operation_id="scale")
    async def scale(job: str, body: ScaleRequest, request: Request) -> ScaleAccepted:
        """Continue with another number of workers: the job stops at a step boundary and restarts from its
        newest checkpoint. 409 outside its min_workers and max_workers, or if there is no room."""
        generation = job_of(control, job).generation
        await control.scale(job, body.workers, caller(request), dry_run=body.dry_run)
        return ScaleAccepted(job=job, workers=body.workers, generation=generation)

    return router
