"""A person wants a job to resume from an earlier state: the next generation starts from it.

The ranks of a job that trains are first asked to go back without a restart, at one step on all of them. If
they cannot, it is ended at a step boundary and begun again, as one that has ended is. None of this is a
failure, so it costs nothing of the restart budget, and tries without progress are counted from 0 again.
Whether the state is there was looked at before; this module never sees a store.
"""

from __future__ import annotations

from torchloom.core.lifecycle import move_job
from torchloom.core.recovery.generation_end import settle
from torchloom.core.recovery.generation_start import start_generation
from torchloom.core.steering.after_rollback import left_as_it_is, went_apart
from torchloom.core.steering.driver import change_requested
from torchloom.core.steering.operations import restored_config
from torchloom.core.steering.stop import end_at_boundary
from torchloom.core.turn import Turn
from torchloom.model.events import ChangeRequested, RestoreRequested, WorkerProgress
from torchloom.model.fleet import Job, JobState, Restore
from torchloom.model.incidents import Decision, DecisionOutcome
from torchloom.model.steering import OperationRecord
from torchloom.model.transaction.messages import Kind


def restore_requested(turn: Turn, event: RestoreRequested) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is None or event.operation in job.operations:
        return
    if event.operation and job.state is JobState.RUNNING:
        _ask_ranks(turn, job, event)
    else:
        _by_restart(turn, job, event)


def _ask_ranks(turn: Turn, job: Job, event: RestoreRequested) -> None:
    values: dict[str, object] = {"step": event.step, "checkpoint": event.checkpoint}
    if event.config:
        values["config"] = event.config
    if event.config_version is not None:
        values["config_version"] = event.config_version
    change = ChangeRequested(
        job=job.id,
        operation=event.operation,
        kind=Kind.RESTORE,
        values=values,
        two_phase=True,
        step_s=event.step_s,
        by=event.by,
    )
    change_requested(turn, change)


def restore_not_applied(turn: Turn, job: Job, record: OperationRecord) -> None:
    """The ranks did not go back by themselves: the same by a restart, if a person wants it and still does."""
    step = record.values.get("step")
    if left_as_it_is(turn, record):
        return
    if job.state is not JobState.RUNNING or not isinstance(step, int) or record.cancelled:
        return
    went_apart(turn, record)
    record.reason = f"{record.reason}; it is done by a restart instead"
    config, version = str(record.values.get("config", "")), record.values.get("config_version")
    step_s = job.control.step_ns / 1e9
    progress = tuple(WorkerProgress(rank, job.control.step, step_s) for rank in range(len(job.workers)))
    again = RestoreRequested(
        job=job.id,
        step=step,
        by=record.by,
        config=config,
        config_version=version if isinstance(version, int) else None,
        progress=progress,
        operation=record.id,
    )
    _by_restart(turn, job, again)


def _by_restart(turn: Turn, job: Job, event: RestoreRequested) -> None:
    wanted = {"step": event.step, "config": event.config, "config_version": event.config_version}
    restored_config(job, wanted, _today(job, event))
    job.restore = Restore(step=event.step, by=event.by, after=job.generation)
    job.fruitless = 0
    reason = f"{event.by} restores step {event.step}"
    match job.state:
        case JobState.WAITING:
            pass  # it begins from there as soon as there is room
        case JobState.BACKOFF:
            start_generation(turn, job, reason)
        case JobState.COMPLETED | JobState.FAILED | JobState.STOPPED:
            job.incident = ""  # it is over; what comes now recovers nothing
            start_generation(turn, job, reason)
        case JobState.STOPPING:
            job.reason = f"{reason}, once it has stopped"
        case JobState.RECOVERING:
            _instead_of_plan(turn, job, reason)
        case JobState.STARTING | JobState.RUNNING:
            progress = event.progress if job.state is JobState.RUNNING else ()
            move_job(turn, job, JobState.STOPPING, reason)
            turn.cancel_timers(job)
            grace_s, hears = job.spec.stop_grace_s, bool(event.operation)
            end_at_boundary(turn, job, event.by, reason, grace_s, progress, hears)


def _today(job: Job, event: RestoreRequested) -> int | None:
    """The last training step made, as far as it is known."""
    if event.made is not None:
        return event.made
    made = [one.steps for one in event.progress]
    if job.control.offset is None or not made:
        return None
    return max(made) + job.control.offset


def _instead_of_plan(turn: Turn, job: Job, reason: str) -> None:
    """Its workers are already being stopped: only what follows changes."""
    job.plan = None
    decided = Decision(action="restore", outcome=DecisionOutcome.DONE, reason=reason)
    turn.fleet.incidents[job.incident].decided = decided
    move_job(turn, job, JobState.STOPPING, reason)
    settle(turn, job)
