"""Routes of the links between a job's ranks: measure them at a step, and what was measured last."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from torchloom.api import once
from torchloom.api.access_guard import caller
from torchloom.api.find import job_of
from torchloom.api.ports import Control
from torchloom.api.routes.jobs import Key
from torchloom.api.schemas.links import LinkMatrixView, link_matrix_view
from torchloom.api.schemas.steering import OperationAccepted, ReasonRequest
from torchloom.core.detect.tournament import LONGEST_PROBE_S, SHORTEST_PROBE_S
from torchloom.errors import NotFound


class ProbeRequest(ReasonRequest):
    within_s: float = Field(default=1.0, ge=SHORTEST_PROBE_S, le=LONGEST_PROBE_S)
    """The longest that ranks may measure; training is paused meanwhile."""


class LinksView(BaseModel):
    job: str
    links: LinkMatrixView


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["operations"])

    @router.post("/jobs/{job}/probe", status_code=202, operation_id="probe")
    async def probe(
        job: str,
        request: Request,
        response: Response,
        body: ProbeRequest | None = None,
        idempotency_key: Key = None,
    ) -> OperationAccepted:
        """Let all ranks measure their links pair by pair at one step. `applied` means measured; `GET
        /jobs/{job}/links` returns the result."""
        how, by = body or ProbeRequest(), caller(request)
        known = once.operation_id(job_of(control, job), by, idempotency_key, how, "probe")
        made = await control.probe(job, by, within_s=how.within_s, why=how.why, operation=known)
        response.headers["Location"] = f"/api/v1/jobs/{job}/operations/{made}"
        return OperationAccepted(job=job, operation=made)

    @router.get("/jobs/{job}/links", operation_id="links")
    async def links(job: str) -> LinksView:
        """The newest delay matrix. 404 if the links were never measured."""
        found = job_of(control, job).links
        if found is None:
            raise NotFound(
                f"The links of {job} have not been measured", hint=f"`loom probe {job}` measures them"
            )
        return LinksView(job=job, links=link_matrix_view(found))

    return router
