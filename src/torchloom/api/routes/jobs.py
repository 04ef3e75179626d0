"""Routes of jobs: submit, list, look at, stop, delete, purge, and what their black boxes hold."""

from __future__ import annotations

import asyncio
import time
import urllib.parse
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from torchloom.api.access_guard import caller
from torchloom.api.defaults import Defaults
from torchloom.api.find import job_of, ranks_of
from torchloom.api.ports import Control
from torchloom.api.schemas.bodies import (
    BoxView,
    JobCreated,
    JobDetail,
    JobRequest,
    JobSummary,
    JobTelemetry,
    PurgeRequest,
    PurgeResult,
    State,
    StopRequest,
)
from torchloom.api.submission import digest_of, env_of, spec_of
from torchloom.api.views import jobs, listing
from torchloom.errors import Conflict, LoomError, NotFound, TimedOut
from torchloom.model.fleet import Job

MAX_WAIT_S = 30.0
FORCED_WITHIN_S = 15.0
AT_ONCE = 32
"""Concurrent agent queries for one request."""
PAGE = 1000

Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S)]
Key = Annotated[str | None, Header(pattern=r"^[\x21-\x7e]{1,255}$")]


def routes(control: Control, defaults: Defaults) -> APIRouter:
    router = APIRouter(tags=["jobs"])

    @router.post(
        "/jobs",
        status_code=201,
        operation_id="submit",
        responses={
            200: {"model": JobCreated, "description": "The same Idempotency-Key made this job before"}
        },
    )
    async def submit(
        request: Request, response: Response, body: JobRequest, idempotency_key: Key = None
    ) -> JobCreated:
        """Start a job. A retry with the same `Idempotency-Key` and body returns the same job with 200."""
        env = env_of(body, defaults)
        made = await control.submit(
            body.name or _free(control, defaults.job_id),
            spec_of(body, env, defaults, control.fleet),
            env,
            caller(request),
            key=idempotency_key or "",
            digest=digest_of(body),
            queue=body.queue,
        )
        response.status_code = 201 if made.created else 200
        response.headers["Location"] = f"/api/v1/jobs/{made.job}"
        return JobCreated(job=made.job, created=made.created)

    async def summaries(
        response: Response,
        request: Request,
        state: Annotated[list[State] | None, Query()] = None,
        label: Annotated[list[str] | None, Query(max_length=64)] = None,
        active: bool = False,
        sort: listing.Sort = "submitted",
        limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
        cursor: Annotated[str, Query(max_length=512)] = "",
    ) -> list[JobSummary]:
        """A page of jobs. If there are more, `X-Next-Cursor` and a `Link` with rel="next" lead to them.

        `label` is `key` or `key=value` and may be repeated, as may `state`.
        """
        found = listing.select(control.fleet.jobs.values(), state or (), label or (), active)
        shown, following = listing.page(found, sort, cursor, limit)
        if following:
            query = {**request.query_params, "cursor": following}
            pairs = [(k, v) for k, v in request.query_params.multi_items() if k != "cursor"]
            query_text = urllib.parse.urlencode([*pairs, ("cursor", query["cursor"])])
            response.headers["X-Next-Cursor"] = following
            response.headers["Link"] = f'<{request.url.path}?{query_text}>; rel="next"'
        now = time.time_ns()
        return [jobs.job_summary(control.fleet, job, control.pulse(job.id), now) for job in shown]

    router.get("/jobs", operation_id="jobs")(summaries)
    router.get("/jobs/summaries", operation_id="summaries")(summaries)

    @router.post("/jobs/purge", operation_id="purge")
    async def purge(request: Request, body: PurgeRequest | None = None) -> PurgeResult:
        """Delete ended jobs by age, state and label; with `dry_run` only say which."""
        how = body or PurgeRequest()
        before_ns = time.time_ns() - int(how.older_than_s * 1e9)
        chosen = [job.id for job in control.fleet.jobs.values() if _purged(job, how, before_ns)]
        done, kept = [], {}
        for job in chosen:
            if not how.dry_run:
                try:
                    await control.delete(job, caller(request), how.keep_logs, how.keep_checkpoints)
                except NotFound:
                    continue  # somebody else was faster
                except LoomError as error:
                    if how.keep_checkpoints:
                        raise
                    kept[job] = str(error)  # one unreachable store does not block the other jobs
                    continue
            done.append(job)
        return PurgeResult(jobs=done, kept=kept, dry_run=how.dry_run)

    @router.get("/jobs/{job}", operation_id="job")
    async def detail(
        job: str, after: Annotated[int | None, Query(ge=-1, le=2**53)] = None, wait_s: Wait = 0.0
    ) -> JobDetail:
        """One job. With `after`, wait up to `wait_s` for a state of the fleet newer than that."""
        job_of(control, job)
        if after is not None and wait_s > 0:
            await control.changed(after, wait_s)
        return jobs.job_detail(control.fleet, job_of(control, job), control.pulse(job), time.time_ns())

    @router.get("/jobs/{job}/summary", operation_id="summary")
    async def summary(job: str) -> JobSummary:
        return jobs.job_summary(control.fleet, job_of(control, job), control.pulse(job), time.time_ns())

    @router.post("/jobs/{job}/stop", status_code=202, operation_id="stop")
    async def stop(job: str, request: Request, body: StopRequest | None = None) -> JobCreated:
        """Stop a job: at a step boundary if it trains, then by SIGTERM, then after the grace by SIGKILL."""
        job_of(control, job)
        how = body or StopRequest()
        await control.stop(job, caller(request), how.kill, how.grace_s, how.signal or "")
        return JobCreated(job=job, created=False)

    @router.delete("/jobs/{job}", status_code=204, operation_id="delete")
    async def delete(
        job: str,
        request: Request,
        force: bool = False,
        keep_logs: bool = False,
        keep_checkpoints: bool = True,
    ) -> None:
        """Delete an ended job and its logs. `force` kills a running job first.

        Checkpoints stay unless `keep_checkpoints=false`; then all are deleted, also pinned ones, and a job
        whose checkpoints cannot be deleted stays.
        """
        if not job_of(control, job).ended:
            if not force:
                raise Conflict(f"Job {job} is still running", hint=f"stop it first: `loom stop {job}`")
            await _kill(control, job, caller(request))
        await control.delete(job, caller(request), keep_logs, keep_checkpoints)

    @router.get("/jobs/{job}/telemetry", operation_id="telemetry")
    async def telemetry(
        job: str,
        rank: Annotated[int | None, Query(ge=0, le=2**31)] = None,
        newest: Annotated[int, Query(ge=0, le=256)] = 32,
    ) -> JobTelemetry:
        """What the black boxes hold: the `newest` steps and collectives of each rank, groups, metrics."""
        found = job_of(control, job)
        slots = asyncio.Semaphore(AT_ONCE)

        async def read(number: int) -> BoxView:
            async with slots:
                return await _box(control, job, number, newest)

        boxes = await asyncio.gather(*(read(number) for number in ranks_of(found, rank)))
        return JobTelemetry(job=job, generation=found.generation, workers=list(boxes))

    return router


def _free(control: Control, name: str) -> str | None:
    """The service's JOB_ID names the first job; later ones get names of their own."""
    return name if name and name not in control.fleet.jobs else None


def _purged(job: Job, how: PurgeRequest, before_ns: int) -> bool:
    labels = job.spec.labels
    return (
        job.ended
        and str(job.state) in how.states
        and job.ended_at_ns <= before_ns
        and all(labels.get(key) == value for key, value in how.labels.items())
    )


async def _kill(control: Control, job: str, by: str) -> None:
    """End a job at once and wait until it has."""
    await control.stop(job, by, kill=True)
    deadline = time.monotonic() + FORCED_WITHIN_S
    while not job_of(control, job).ended:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimedOut(
                f"Job {job} has been asked to stop and has not ended yet",
                hint="its node may be unreachable; try again",
            )
        await control.changed(control.fleet.seq, left)


async def _box(control: Control, job: str, rank: int, newest: int) -> BoxView:
    """One worker's black box; an unreachable worker must not hide the others."""
    try:
        reading = await control.read_box(job, rank, newest)
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
