"""The route that injects a fault into a running job. Only admins may: see access_guard.py."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from torchloom.api.access_guard import caller
from torchloom.api.ports import Control
from torchloom.api.schemas.bodies import JobId, Strict
from torchloom.model.faults import Fault, FaultKind, FaultPlace


class FaultRequest(Strict):
    kind: FaultKind
    ranks: list[int] = Field(default=[], max_length=4096)
    """Which workers it hits; empty: all of them."""
    amount: float | None = None
    """The kind's number (a factor, a code, a size …); null: its default."""
    duration_s: float = Field(default=0.0, ge=0, le=86400)
    """0: until the worker ends, or once."""
    at_step: int | None = Field(default=None, ge=1, le=2**62)
    """Before which step of the present generation; null: as soon as the worker receives it."""
    where: FaultPlace = "step"
    seed: int = Field(default=0, ge=0, le=2**32)
    peer: int | None = Field(default=None, ge=0, le=2**31)
    """The other end of a slow link."""


class FaultAccepted(BaseModel):
    job: str
    name: str
    """Name of the injection, as in its event."""
    kind: str
    ranks: list[int]


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["jobs"])

    @router.post("/jobs/{job}/faults", status_code=202, operation_id="inject")
    async def inject(job: JobId, body: FaultRequest, request: Request) -> FaultAccepted:
        """Inject a fault, to see how it is reported and handled. For admins only."""
        fault = Fault(
            kind=body.kind,
            amount=body.amount,
            duration_s=body.duration_s,
            at_step=body.at_step,
            where=body.where,
            seed=body.seed,
            peer=body.peer,
        )
        name, ranks = await control.inject(job, tuple(body.ranks), fault, caller(request))
        return FaultAccepted(job=job, name=name, kind=body.kind, ranks=list(ranks))

    return router
