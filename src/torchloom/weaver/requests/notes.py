"""What a person should know about a change that is asked for: when it takes effect, what it makes void."""

from __future__ import annotations

from collections.abc import Mapping

from torchloom.core.config.schedule import ahead, superseded
from torchloom.core.steering.versions import Versions, versions_of
from torchloom.model.fleet import Job, JobState
from torchloom.model.transaction.config import Entry
from torchloom.model.transaction.messages import Kind


def what_to_expect(job: Job, waiting: bool, at_step: int | None) -> list[str]:
    seat = job.spec.replica
    notes = []
    if seat is not None and seat.size > 1:
        notes.append(f"{job.id} is a replica of {seat.set}: the change is for all {seat.size} replicas")
    if waiting:
        return [*notes, "the job has not started: it holds from its first step on"]
    stepping = all(worker.first_step_at_ns for worker in job.workers)
    if job.state is not JobState.RUNNING or not stepping:
        notes.append("the workers are starting: it takes effect after their first step")
    elif job.paused and at_step is None:
        notes.append("the job is paused: it takes effect at the next step")
    elif job.paused:
        notes.append("the job is paused: it comes to that step once it is resumed")
    before = sum(waiting.at_step is None for waiting in job.control.queue)
    before += len(job.control.parts) or job.control.current is not None
    if before:
        notes.append(f"{before} other operation{' goes' if before == 1 else 's go'} first")
    return notes


def superseding(job: Job, values: Mapping[str, object], at_step: int | None, made: int | None) -> list[str]:
    """Older changes that lie ahead and will have no effect once this one is applied."""
    step = at_step if at_step is not None else (made or 0) + 1
    version = job.control.newest + 1
    planned = [
        Entry(one.version, one.training_step, one.values)
        for one in job.control.queue
        if one.kind is Kind.SET and one.training_step is not None
    ]
    coming = (*ahead(job.schedule, step - 1), *planned)
    if made is None and at_step is None:
        coming = tuple(planned)
    versions = versions_of(job)
    void = superseded((*coming, Entry(version, step, values)))
    return [
        f"it supersedes {_named(versions, entry)}, which is due at step {entry.step}"
        for entry in coming
        if void.get(entry.version) == version
    ]


def _named(versions: Versions, entry: Entry) -> str:
    """A change that waits for its step has no version yet."""
    version = versions.get(entry.version)
    return f"operation {entry.version}" if version is None else f"version {version}"
