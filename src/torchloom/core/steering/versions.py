"""The versions of a job's settings as people see them: 1 is the first change that took effect, 2 the next.

Ranks, records and saved states name a change by the number of its operation. Pauses, checkpoints and changes
that were not applied have such numbers, too. They are no versions, so versions have no gaps. The numbers of
operations stay what the protocol and everything stored use; only people's views are translated, here.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchloom.core.config.schedule import in_force, record
from torchloom.model.fleet import Job
from torchloom.model.transaction.config import Entry
from torchloom.model.transaction.messages import Kind

Versions = Mapping[int, int]
"""The number of an operation → the version of the settings that it made."""


def record_change(job: Job, entry: Entry) -> int:
    """Put a change that takes effect into the schedule. Returns its version."""
    known = changes_of(job)
    job.changes = known if entry.version in known else [*known, entry.version]
    job.schedule = record(job.schedule, entry)
    return job.changes.index(entry.version) + 1


def changes_of(job: Job) -> list[int]:
    """Operations that changed settings, in the order in which they took effect.

    Snapshots of earlier releases have no such list. There it is what the schedule and the kept operations
    name, in the order of their numbers.
    """
    if job.changes:
        return job.changes
    applied = {r.version for r in job.operations.values() if r.kind is Kind.SET and r.state == "applied"}
    return sorted({entry.version for entry in job.schedule} | applied)


def versions_of(job: Job) -> Versions:
    return {operation: place for place, operation in enumerate(changes_of(job), 1)}


def version_for(job: Job, step: int) -> int:
    """The version that training step `step` is made with; 0: nothing was changed."""
    versions = versions_of(job)
    return max((versions[entry.version] for entry in in_force(job.schedule, step)), default=0)


def version_of_state(job: Job, operation: int, step: int | None = None) -> int:
    """The version in force where `operation` is the newest change; `step` is the next one, if it is known.

    A change that was planned long ago and came later than a newer one has a higher version than that one, but
    a lower number of its operation.
    """
    versions = versions_of(job)
    there = job.schedule if step is None else in_force(job.schedule, step)
    older = [versions[entry.version] for entry in there if entry.version <= operation]
    return max((*older, versions.get(operation, 0)))
