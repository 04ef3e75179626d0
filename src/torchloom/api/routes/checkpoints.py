"""Routes of checkpoints: a job's catalogue, what can be done with one of them, and going back to one."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from torchloom.api.access_guard import caller
from torchloom.api.find import job_of
from torchloom.api.ports import Control
from torchloom.api.schemas.bodies import Strict
from torchloom.api.schemas.steering import Choice
from torchloom.core.steering.versions import version_of_state
from torchloom.errors import NotFound
from torchloom.model.checkpoints import CheckpointEntry
from torchloom.model.fleet import Job
from torchloom.model.messages import CheckpointAnswer, CheckpointVerb

Name = Annotated[str, Path(pattern=r"^step-[0-9]{1,18}\.g[0-9]{1,18}(\.b[0-9]{1,9})?$")]


class CheckpointView(BaseModel):
    """One checkpoint of a job."""

    name: str
    step: int
    generation: int
    where: str
    whole: bool
    """All files exist with the right size, and none was found damaged."""
    why: str
    """Why it is not whole."""
    verified_ns: int
    """When its checksums were last verified; 0: never."""
    pinned: bool
    resumable: bool
    """A restart may choose it; false: it is on a branch that the job went back from."""
    newest: bool
    """A restart would take this one."""
    created_ns: int
    size: int
    world: int
    epoch: int
    config_version: int
    """Version of the settings in force for the step after it."""
    parent: str
    finite: bool
    """False: the loss or the parameters were known to be NaN or infinite."""
    metrics: dict[str, float]
    lineage: dict[str, str]


class CheckpointList(BaseModel):
    job: str
    store: str
    """Where the checkpoints are; empty if the job has reported none."""
    name: str
    """The job's name in that store."""
    node: str
    restored: str
    """The checkpoint that the newest generation started from; empty: from scratch."""
    restored_from: str
    restored_generation: int
    interval: int
    """Steps between two saves, as chosen last; 0: not known."""
    memory_interval: int
    """Steps between two in-memory checkpoints; 0: off, or not known."""
    failing: str
    """The open incident about saving, if saves fail."""
    left_out: int
    """Older checkpoints that exist but are not in this list."""
    checkpoints: list[CheckpointView]


class RestoreRequest(Strict):
    step: int = Field(ge=0, le=2**62)
    config: Choice | None = None
    """Whether settings that were changed after that step keep today's values or return to those of then.
    Required if there are any."""


class RestoreAccepted(BaseModel):
    job: str
    step: int
    checkpoint: str
    """The checkpoint it will start from. It is pinned, so that no keep rule removes it before."""
    operation: str
    """The operation to follow, if the job goes back without a restart; empty: it restarts."""


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["checkpoints"])

    @router.get("/jobs/{job}/checkpoints", operation_id="checkpoints")
    async def listed(job: str) -> CheckpointList:
        """List checkpoints, newest first. This reads the store, so it may take as long as a listing there."""
        found = job_of(control, job)
        if found.checkpoints is None:
            return _list(found, CheckpointAnswer())
        answer = await control.checkpoints(job, "list")
        return _list(job_of(control, job), answer)

    async def do(job: str, verb: CheckpointVerb, name: str) -> CheckpointView:
        job_of(control, job)
        answer = await control.checkpoints(job, verb, name)
        if not answer.entries:
            raise NotFound(f"{name} of {job} is not there any more", hint=f"see `loom checkpoints {job}`")
        return _view(answer.entries[0], _version(job_of(control, job), answer.entries[0]))

    @router.post("/jobs/{job}/checkpoints/{name}/verify", operation_id="verify_checkpoint")
    async def verify(job: str, name: Name) -> CheckpointView:
        """Verify all checksums, however long it takes. A damaged one is marked and never used again."""
        return await do(job, "verify", name)

    @router.post("/jobs/{job}/checkpoints/{name}/pin", operation_id="pin_checkpoint")
    async def pin(job: str, name: Name) -> CheckpointView:
        """Keep this checkpoint, whatever the keep rules say."""
        return await do(job, "pin", name)

    @router.post("/jobs/{job}/checkpoints/{name}/unpin", operation_id="unpin_checkpoint")
    async def unpin(job: str, name: Name) -> CheckpointView:
        return await do(job, "unpin", name)

    @router.delete("/jobs/{job}/checkpoints/{name}", status_code=204, operation_id="delete_checkpoint")
    async def delete(job: str, name: Name) -> None:
        """Delete a checkpoint. Refused for a pinned one and for the one that a restart would use."""
        job_of(control, job)
        await control.checkpoints(job, "delete", name)

    @router.post("/jobs/{job}/restore", status_code=202, operation_id="restore")
    async def restore(job: str, body: RestoreRequest, request: Request) -> RestoreAccepted:
        """Resume from an earlier step: a job that has ended starts again; a running job goes back on all
        ranks at one step, or is restarted if its script cannot do that.

        Refused, before anything is stopped, if the checkpoint of that step is missing or damaged.
        """
        job_of(control, job)
        mine = uuid.uuid4().hex[:12]
        chosen = await control.restore(job, body.step, caller(request), config=body.config, operation=mine)
        live = mine in job_of(control, job).operations
        return RestoreAccepted(
            job=job, step=body.step, checkpoint=chosen.name, operation=mine if live else ""
        )

    return router


def _list(job: Job, answer: CheckpointAnswer) -> CheckpointList:
    known = job.checkpoints
    saved = known.saved if known is not None else None
    return CheckpointList(
        job=job.id,
        store=known.place.uri if known else "",
        name=known.place.name if known else "",
        node=known.node if known else "",
        restored=known.restored if known else "",
        restored_from=known.restored_from if known else "",
        restored_generation=known.restored_generation if known else 0,
        interval=saved.interval if saved else 0,
        memory_interval=saved.memory_interval if saved else 0,
        failing=known.failing if known else "",
        left_out=answer.left_out,
        checkpoints=[_view(entry, _version(job, entry)) for entry in answer.entries],
    )


def _version(job: Job, entry: CheckpointEntry) -> int:
    """A saved state names the operation of the newest change that it was made with."""
    return version_of_state(job, entry.config_version, entry.step + 1)


def _view(entry: CheckpointEntry, version: int) -> CheckpointView:
    return CheckpointView(
        name=entry.name,
        step=entry.step,
        generation=entry.generation,
        where=entry.where,
        whole=entry.whole,
        why=entry.why,
        verified_ns=entry.verified_ns,
        pinned=entry.pinned,
        resumable=entry.resumable,
        newest=entry.newest,
        created_ns=entry.created_ns,
        size=entry.size,
        world=entry.world,
        epoch=entry.epoch,
        config_version=version,
        parent=entry.parent,
        finite=entry.finite,
        metrics=entry.metrics,
        lineage=entry.lineage,
    )
