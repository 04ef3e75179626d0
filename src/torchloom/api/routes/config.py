"""Routes of a job's config: settings and their values, changes, history, undoing changes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from torchloom.api import once
from torchloom.api.access_guard import caller
from torchloom.api.find import job_of
from torchloom.api.ports import Control
from torchloom.api.routes.jobs import Key
from torchloom.api.schemas.steering import (
    ChangePlanView,
    ChangeRequest,
    ConfigView,
    HistoryView,
    RevertRequest,
)
from torchloom.api.views import steering


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["config"])
    taken: dict[int | str, dict[str, Any]] = {
        202: {"model": ChangePlanView, "description": "Accepted; follow `operation`"}
    }

    @router.get("/jobs/{job}/config", operation_id="config")
    async def config(job: str) -> ConfigView:
        """Every setting with its type, its value in every place and what controls it; and the schedule."""
        return steering.config_view(job_of(control, job), control.config(job), control.pulse(job))

    @router.get("/jobs/{job}/config/history", operation_id="config_history")
    async def history(job: str) -> list[HistoryView]:
        """Who changed what, when, why, and from which step on; oldest first."""
        return steering.history(job_of(control, job))

    @router.patch("/jobs/{job}/config", operation_id="change", responses=taken)
    async def change(
        job: str, body: ChangeRequest, request: Request, response: Response, idempotency_key: Key = None
    ) -> ChangePlanView:
        """Change settings on all ranks at one step, or on none; 202. A `dry_run` returns the plan, with 200.

        An invalid change is refused before any rank receives it. A retry with the same `Idempotency-Key`
        returns the operation it made before.
        """
        found = job_of(control, job)
        known = once.operation_id(found, caller(request), idempotency_key, body, "change")
        plan = await control.change(
            job,
            body.values,
            caller(request),
            why=body.why,
            at_step=body.at_step,
            mode=body.mode,
            dry_run=body.dry_run,
            operation=known,
        )
        return _answer(job, steering.plan_view(job, plan), response)

    @router.post("/jobs/{job}/config/revert", operation_id="revert", responses=taken)
    async def revert(
        job: str,
        request: Request,
        response: Response,
        body: RevertRequest | None = None,
        idempotency_key: Key = None,
    ) -> ChangePlanView:
        """Undo the last change, or go back to an earlier version: a change like any other, at one step."""
        how = body or RevertRequest()
        found = job_of(control, job)
        known = once.operation_id(found, caller(request), idempotency_key, how, "revert")
        plan = await control.revert(
            job, how.version, caller(request), why=how.why, dry_run=how.dry_run, operation=known
        )
        return _answer(job, steering.plan_view(job, plan), response)

    return router


def _answer(job: str, plan: ChangePlanView, response: Response) -> ChangePlanView:
    if not plan.dry_run:
        response.status_code = 202
        response.headers["Location"] = f"/api/v1/jobs/{job}/operations/{plan.operation}"
    return plan
