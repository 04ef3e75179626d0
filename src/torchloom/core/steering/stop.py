"""A person wants a job to end: at a step boundary if it trains, at once if it does not.

Ranks that take part in steering agree on the boundary themselves (a STOP is an operation like any other); the
others are given a step that lies far enough ahead. Either way it is certain: what has not ended within a
bounded time, or could not agree, gets SIGTERM and then SIGKILL.

A STOP that is a command of the mailbox itself is kept because a weaver that has just begun knows
the steps of the ranks seconds before it knows whether they take part in steering.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from torchloom.core.lifecycle import move_job
from torchloom.core.recovery.generation_end import end_job, settle, stop_workers
from torchloom.core.steering.driver import request
from torchloom.core.turn import Turn
from torchloom.model.events import StopRequested, WorkerProgress
from torchloom.model.fleet import Job, JobState
from torchloom.model.steering import OperationRecord
from torchloom.model.timers import TimerKind
from torchloom.model.transaction.messages import Kind
from torchloom.model.transaction.operation import Operation

LEAD_S = 0.25
"""How far ahead a boundary must lie so that every rank reads the request before it gets there."""
MOST_WAIT_S = 60.0
HANDLER_ENDS_S = 2.0
"""How long a script that was ended at a boundary may take at least; the job's grace if that is longer."""
TRAINER_ENDS_S = 300.0
"""How long a framework's trainer may take to save and end before its workers get SIGTERM."""


def stop_requested(turn: Turn, event: StopRequested) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is None or job.ended:
        return
    reason = f"stopped by {event.by}" + (" (killed)" if event.kill else "")
    steps_on = False
    match job.state:
        case JobState.WAITING | JobState.BACKOFF:
            end_job(turn, job, JobState.STOPPED, reason)
            return
        case JobState.STOPPING:
            if job.restore is not None or job.resizing:  # it was to begin again, and now it is not
                job.restore, job.resizing, job.reason = None, 0, reason
            if not event.kill:
                return  # it is in progress, and asking again would only restart the wait
            job.reason = reason
        case _:
            steps_on = job.state is JobState.RUNNING
            move_job(turn, job, JobState.STOPPING, reason)
    job.plan = None
    turn.cancel_timers(job)
    grace_s = 0.0 if event.kill else (job.spec.stop_grace_s if event.grace_s is None else event.grace_s)
    progress = event.progress if steps_on and not event.kill else ()
    end_at_boundary(turn, job, event.by, reason, grace_s, progress, event.hears, event.signal)


def end_at_boundary(
    turn: Turn,
    job: Job,
    by: str,
    reason: str,
    grace_s: float,
    progress: Sequence[WorkerProgress],
    hears: bool,
    signal: str = "",
) -> None:
    """End what lives of a job that is STOPPING; at once unless all ranks are known to step.

    `signal` is what a script that handles it gets at the boundary, and any script where there is none.
    """
    at_step, wait_s = boundary(progress, len(job.workers))
    job.stop_signal = signal
    if at_step is not None and hears:
        turn.set_timer(TimerKind.STOP_BOUNDARY, job, wait_s)
        job.stop_grace_s = grace_s
        record = OperationRecord(id=f"{turn.seq:012x}", version=0, kind=Kind.STOP, by=by, why=reason)
        step_s = max(p.step_s for p in progress)
        values: dict[str, object] = {"signal": signal} if signal else {}
        request(turn, job, record, Operation(0, Kind.STOP, values, step_ns=int(step_s * 1e9)))
        return
    if signal:
        at_step, wait_s = None, 0.0  # a boundary by the mailbox alone knows no signal
    stop_workers(
        turn, job, reason=reason, grace_s=grace_s, at_step=at_step, boundary_wait_s=wait_s, signal=signal
    )
    settle(turn, job)


def boundary_agreed(turn: Turn, job: Job) -> None:
    """All ranks end at one boundary. A framework's trainer, or the script's own handler of SIGTERM, ends the
    loop in its own way there: it saves, and the script continues behind it, which takes longer."""
    if job.state is not JobState.STOPPING or not job.living:
        return
    trains = job.checkpoints is not None and bool(job.checkpoints.place.framework)
    within_s = max(TRAINER_ENDS_S if trains else HANDLER_ENDS_S, job.stop_grace_s)
    turn.set_timer(TimerKind.STOP_BOUNDARY, job, within_s)
    if job.stop_signal:  # it has got its signal and then its grace: no second one
        job.stop_signal, job.stop_grace_s = "", 0.0


def boundary_not_reached(turn: Turn, job: Job) -> None:
    """The ranks did not agree on a boundary, or one of them does not end there: now by signals."""
    if job.state is not JobState.STOPPING or not job.living:
        return
    turn.cancel_timers(job)
    stop_workers(turn, job, reason=job.reason, grace_s=job.stop_grace_s, signal=job.stop_signal)


def boundary(progress: Sequence[WorkerProgress], world: int) -> tuple[int | None, float]:
    """The step all ranks can still agree to stop before, and how long to wait for it.

    None when not every rank is known to step: then there is no boundary to wait for.
    """
    ranks = {p.rank for p in progress}
    if ranks != set(range(world)) or not world or any(p.steps == 0 or p.step_s <= 0 for p in progress):
        return None, 0.0
    step_s = median(p.step_s for p in progress)
    lead = 2 + math.ceil(LEAD_S / step_s)
    at_step = max(p.steps for p in progress) + lead
    return at_step, min(MOST_WAIT_S, 2.0 + 4 * lead * step_s)


def stop_again(turn: Turn, job: Job) -> None:
    """An agent could not stop workers: ask it again, this time with SIGKILL at once."""
    if job.living and job.state in (JobState.STOPPING, JobState.RECOVERING):
        stop_workers(turn, job, reason=f"stopping them failed before: {job.reason}", grace_s=0.0)
