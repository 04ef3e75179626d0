"""Routes of operations on a running job: pause, resume, checkpoint now; following, listing, giving up."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from torchloom.api import once
from torchloom.api.access_guard import caller
from torchloom.api.find import job_of
from torchloom.api.ports import Control
from torchloom.api.routes.jobs import Key, Wait
from torchloom.api.schemas.steering import OperationAccepted, OperationState, OperationView, ReasonRequest
from torchloom.api.views.steering import operation_view
from torchloom.errors import NotFound
from torchloom.model.steering import OperationRecord

Id = Annotated[str, Path(max_length=255, pattern=r"^[A-Za-z0-9._-]+$")]


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["operations"])

    def asked_for(name: str, operation_id: str, do: Callable[..., Awaitable[str]], said: str) -> None:
        async def route(
            job: str,
            request: Request,
            response: Response,
            body: ReasonRequest | None = None,
            idempotency_key: Key = None,
        ) -> OperationAccepted:
            how, by = body or ReasonRequest(), caller(request)
            known = once.operation_id(job_of(control, job), by, idempotency_key, how, name)
            made = await do(job, by, why=how.why, operation=known)
            response.headers["Location"] = f"/api/v1/jobs/{job}/operations/{made}"
            return OperationAccepted(job=job, operation=made)

        path = f"/jobs/{{job}}/{name}"
        router.post(path, status_code=202, operation_id=operation_id, description=said)(route)

    # By way of a lambda: the description of the API is also made without a control service.
    asked_for(
        "pause",
        "pause",
        lambda *what, **how: control.pause(*what, **how),
        "Hold all ranks before one step; they keep memory, devices and connections.",
    )
    asked_for(
        "resume",
        "resume",
        lambda *what, **how: control.resume(*what, **how),
        "A paused job continues with the step it was paused before.",
    )
    asked_for(
        "checkpoint",
        "checkpoint_now",
        lambda *what, **how: control.checkpoint_now(*what, **how),
        "Save the state after one step on all ranks. `applied` means taken; it is written while training "
        "continues, and the operation's `saved` or `unsaved` reports how that ended.",
    )

    @router.get("/jobs/{job}/operations", operation_id="operations")
    async def listed(job: str, active: bool = False) -> list[OperationView]:
        """Operations of a job, oldest first; the newest 256 are kept. `active`: only those in progress."""
        found = job_of(control, job)
        records = [record for record in found.operations.values() if not (active and record.ended)]
        return [operation_view(found, record) for record in records]

    @router.get("/jobs/{job}/operations/{operation}", operation_id="operation")
    async def one(
        job: str, operation: Id, wait_s: Wait = 0.0, state: OperationState | None = None
    ) -> OperationView:
        """One operation. With `wait_s`, wait until it ends; with `state` too, until it leaves that state."""
        deadline = time.monotonic() + wait_s
        while True:
            seq, found = control.fleet.seq, _find(control, job, operation)
            left_s = deadline - time.monotonic()
            if found.ended or left_s <= 0 or state not in (None, found.state):
                return operation_view(job_of(control, job), found)
            await control.changed(seq, left_s)

    @router.delete("/jobs/{job}/operations/{operation}", status_code=202, operation_id="cancel_operation")
    async def cancel(job: str, operation: Id, request: Request) -> OperationAccepted:
        """Cancel an operation in progress. Once every rank is armed the ranks decide, and the outcome reports
        what they did."""
        _find(control, job, operation)
        await control.cancel_change(job, operation, caller(request))
        return OperationAccepted(job=job, operation=operation)

    return router


def _find(control: Control, job: str, operation: str) -> OperationRecord:
    found = job_of(control, job).operations.get(operation)
    if found is None:
        raise NotFound(f"{job} knows of no operation {operation}", hint=f"see `loom operations {job}`")
    return found
