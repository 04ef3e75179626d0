"""Which state may follow which. The only place that changes the state of a job or a worker."""

from __future__ import annotations

from torchloom.model.fleet import ENDED, Job, JobState, Worker, WorkerState

J, W = JobState, WorkerState

JOB_MOVES: dict[JobState, frozenset[JobState]] = {
    J.WAITING: frozenset({J.STARTING, J.STOPPED, J.FAILED}),
    J.STARTING: frozenset({J.RUNNING, J.RECOVERING, J.STOPPING, J.COMPLETED}),
    J.RUNNING: frozenset({J.RECOVERING, J.STOPPING, J.COMPLETED}),
    J.RECOVERING: frozenset({J.STARTING, J.WAITING, J.BACKOFF, J.STOPPING, J.FAILED}),
    J.BACKOFF: frozenset({J.STARTING, J.WAITING, J.STOPPED}),
    J.STOPPING: frozenset({J.STOPPED}),
    J.COMPLETED: frozenset(),
    J.FAILED: frozenset(),
    J.STOPPED: frozenset(),
}

WORKER_MOVES: dict[WorkerState, frozenset[WorkerState]] = {
    W.ASSIGNED: frozenset({W.RUNNING, W.STOPPING, W.EXITED}),
    W.RUNNING: frozenset({W.STOPPING, W.EXITED}),
    W.STOPPING: frozenset({W.EXITED}),
    W.EXITED: frozenset(),
}


def move_job(job: Job, state: JobState, reason: str, now_ns: int) -> None:
    """Change a job's state; every state carries the reason it was entered."""
    assert state in JOB_MOVES[job.state], f"a {job.state} job cannot become {state}"
    assert reason, "no state without a reason"
    job.state, job.reason = state, reason
    if state in ENDED:
        job.ended_at_ns = now_ns


def move_worker(worker: Worker, state: WorkerState) -> None:
    assert state in WORKER_MOVES[worker.state], f"a {worker.state} worker cannot become {state}"
    worker.state = state
