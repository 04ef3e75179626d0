"""Which state may follow which. The only place that changes the state of a job or a worker.

What is counted by state is kept here too, so that no event has to look at all jobs: who waits, how many
workers live, and which slots of a node they take.
"""

from __future__ import annotations

from torchloom.core.turn import Turn
from torchloom.model.fleet import ENDED, Job, JobState, Worker, WorkerState

J, W = JobState, WorkerState

JOB_MOVES: dict[JobState, frozenset[JobState]] = {
    J.WAITING: frozenset({J.STARTING, J.STOPPED, J.FAILED}),
    J.STARTING: frozenset({J.RUNNING, J.RECOVERING, J.STOPPING, J.COMPLETED}),
    J.RUNNING: frozenset({J.RECOVERING, J.STOPPING, J.COMPLETED}),
    J.RECOVERING: frozenset({J.STARTING, J.WAITING, J.BACKOFF, J.STOPPING, J.FAILED}),
    J.BACKOFF: frozenset({J.STARTING, J.WAITING, J.STOPPED}),
    # Back to the start only by a restore: it ends a generation for the sake of the next, or revives a job.
    J.STOPPING: frozenset({J.STOPPED, J.STARTING, J.WAITING}),
    J.COMPLETED: frozenset({J.STARTING, J.WAITING}),
    J.FAILED: frozenset({J.STARTING, J.WAITING}),
    J.STOPPED: frozenset({J.STARTING, J.WAITING}),
}

WORKER_MOVES: dict[WorkerState, frozenset[WorkerState]] = {
    W.ASSIGNED: frozenset({W.RUNNING, W.STOPPING, W.EXITED}),
    W.RUNNING: frozenset({W.STOPPING, W.EXITED}),
    W.STOPPING: frozenset({W.EXITED}),
    W.EXITED: frozenset(),
}


def move_job(turn: Turn, job: Job, state: JobState, reason: str) -> None:
    """Change a job's state; every state carries the reason it was entered."""
    assert state in JOB_MOVES[job.state], f"a {job.state} job cannot become {state}"
    assert reason, "no state without a reason"
    job.state, job.reason = state, reason
    if state is JobState.WAITING:
        turn.fleet.waiting[job.id] = None
    else:
        turn.fleet.waiting.pop(job.id, None)
        job.short_since_ns = 0
    job.ended_at_ns = turn.now_ns if state in ENDED else 0
    turn.seats_changed = turn.seats_changed or state in ENDED


def set_workers(turn: Turn, job: Job, workers: list[Worker]) -> None:
    """Replace a generation, none of which lives any more, by the next one. Each worker takes a slot."""
    assert job.living == 0, "a generation cannot begin before the one before it is gone"
    job.workers, job.living = workers, len(workers)
    turn.seats_changed = True
    for worker in workers:
        node = turn.fleet.nodes[worker.node]
        node.jobs[job.id] = node.jobs.get(job.id, 0) + 1
        node.taken += 1
        job.places[worker.node] = None


def move_worker(turn: Turn, worker: Worker, state: WorkerState) -> None:
    assert state in WORKER_MOVES[worker.state], f"a {worker.state} worker cannot become {state}"
    worker.state = state
    if state is WorkerState.EXITED:
        turn.fleet.jobs[worker.ref.job].living -= 1
        node = turn.fleet.nodes[worker.node]
        node.taken -= 1
        node.jobs[worker.ref.job] -= 1
        if not node.jobs[worker.ref.job]:
            del node.jobs[worker.ref.job]
        turn.room_appeared = True
