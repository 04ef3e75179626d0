"""Routes of jobs: submit, list, look at, stop, delete, and what their black boxes hold."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Query, Request
from msgspec.structs import replace

from torchloom.api import views
from torchloom.api.find import job_of, ranks_of
from torchloom.api.guard import caller
from torchloom.api.ports import Control
from torchloom.api.schemas import (
    BoxView,
    JobCreated,
    JobDetail,
    JobRequest,
    JobSummary,
    JobTelemetry,
    StopRequest,
)
from torchloom.errors import Conflict, LoomError, UsageError
from torchloom.model.ids import check_token
from torchloom.model.job import MAX_WORKERS, JobSpec, Program, RestartLimits

MAX_WAIT_S = 30.0
AT_ONCE = 32
"""Agent queries under way at the same time for one request."""

Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S)]


def routes(control: Control) -> APIRouter:
    router = APIRouter()

    @router.post("/jobs", status_code=201, operation_id="submit")
    async def submit(body: JobRequest, request: Request) -> JobCreated:
        if body.name is not None:
            check_token(body.name, "job name")
        return JobCreated(
            job=await control.submit(body.name, spec_of(body), check_env(body.env), caller(request))
        )

    @router.get("/jobs", operation_id="jobs")
    async def jobs(active: bool = False) -> list[JobSummary]:
        fleet, now = control.fleet, time.time_ns()
        return [
            views.job_summary(fleet, job, control.pulse(job.id), now)
            for job in fleet.jobs.values()
            if not (active and job.ended)
        ]

    @router.get("/jobs/{job}", operation_id="job")
    async def detail(job: str, after: int | None = None, wait_s: Wait = 0.0) -> JobDetail:
        """With `after`, wait up to `wait_s` for a state of the fleet newer than that."""
        job_of(control, job)
        if after is not None and wait_s > 0:
            await control.changed(after, wait_s)
        return views.job_detail(control.fleet, job_of(control, job), control.pulse(job), time.time_ns())

    @router.post("/jobs/{job}/stop", status_code=202, operation_id="stop")
    async def stop(job: str, request: Request, body: StopRequest | None = None) -> JobCreated:
        job_of(control, job)
        how = body or StopRequest()
        await control.stop(job, caller(request), how.kill, how.grace_s)
        return JobCreated(job=job)

    @router.delete("/jobs/{job}", status_code=204, operation_id="delete")
    async def delete(job: str, request: Request) -> None:
        if not job_of(control, job).ended:
            raise Conflict(f"Job {job} is still running", hint=f"stop it first: `loom stop {job}`")
        await control.delete(job, caller(request))

    @router.get("/jobs/{job}/telemetry", operation_id="telemetry")
    async def telemetry(job: str, rank: Annotated[int | None, Query(ge=0)] = None) -> JobTelemetry:
        found = job_of(control, job)
        slots = asyncio.Semaphore(AT_ONCE)

        async def read(number: int) -> BoxView:
            async with slots:
                return await _box(control, job, number)

        boxes = await asyncio.gather(*(read(number) for number in ranks_of(found, rank)))
        return JobTelemetry(job=job, generation=found.generation, workers=list(boxes))

    return router


async def _box(control: Control, job: str, rank: int) -> BoxView:
    """One worker's black box; a worker that cannot be asked must not hide the others."""
    try:
        reading = await control.read_box(job, rank)
    except LoomError as error:
        return BoxView(rank=rank, found=False, error=str(error))
    return BoxView(
        rank=rank,
        found=reading.found,
        collectives=reading.collectives,
        steps=reading.steps,
        groups=reading.groups,
        hyperparameters=reading.hyperparameters,
        metrics=reading.metrics,
        torn=reading.torn,
    )


def spec_of(body: JobRequest) -> JobSpec:
    """A request as the job specification the core knows."""
    world = body.workers_per_node * body.nodes
    if world > MAX_WORKERS:
        raise UsageError(f"{world} workers are more than the {MAX_WORKERS} that one job may have.")
    if body.program.kind == "script" and not body.program.target.strip():
        raise UsageError("The job names no script.")
    defaults = RestartLimits()
    most = defaults.max_restarts if body.max_restarts is None else body.max_restarts
    spec = JobSpec(
        program=Program(body.program.kind, body.program.target, tuple(body.program.args)),
        cwd=body.cwd,
        workers_per_node=body.workers_per_node,
        nodes=body.nodes,
        interpreter=body.interpreter,
        spawn=body.spawn,
        preload=tuple(body.preload),
        restarts=RestartLimits(max_restarts=most, max_restarts_per_worker=most),
        pin_cores=body.pin_cores,
        expected_steps=body.expected_steps,
        env_names=tuple(sorted(body.env)),
        labels=body.labels,
    )
    return spec if body.stop_grace_s is None else replace(spec, stop_grace_s=body.stop_grace_s)


def check_env(env: dict[str, str]) -> dict[str, str]:
    """Refuse what no process can be given. The message names the variable, never its value."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise UsageError(f"{name[:40]!r} cannot be an environment variable.")
    return env
