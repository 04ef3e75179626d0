"""Whether a job that somebody submits may be accepted: its size, and room for it now or later."""

from __future__ import annotations

from torchloom.core.placement.place import refusal
from torchloom.errors import Conflict, UsageError
from torchloom.model.fleet import Fleet
from torchloom.model.job import MAX_WORKERS, JobSpec


def check_fits(fleet: Fleet, spec: JobSpec, queue: bool | None) -> None:
    """Raises UsageError or Conflict with the reason."""
    if not 1 <= spec.world_size <= MAX_WORKERS:
        raise UsageError(f"A job has 1 to {MAX_WORKERS} workers, {spec.world_size} were asked for.")
    why_not = refusal(fleet, spec, queue)
    if why_not:
        hint = (
            "leave --no-queue out to wait for room"
            if queue is False
            else "ask for fewer, add a node, or offer more places on one (`loom up --slots`)"
        )
        raise Conflict(why_not, hint=hint)
