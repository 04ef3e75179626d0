"""Jobs leave a node that is drained or whose host ends: saved, stopped at a step boundary, begun elsewhere.

Owns which job may go and when. A healthy job is worth more than an empty node: one that has no room
elsewhere, cannot save or is paused stays and trains on, and the note says why; it is looked at again with
every event, so it goes when it can. A save that failed is asked for again after a while, a few times.
`force` moves also what cannot be saved, from its newest checkpoint. Nobody stays on a host that ends: a job
without room elsewhere is saved, ended, and waits for room.
Placing is for place.py, which never uses a drained node.
"""

from __future__ import annotations

from torchloom.core.devices.users import uses
from torchloom.core.lifecycle import move_job
from torchloom.core.placement.place import why_no_room
from torchloom.core.steering.driver import change_requested
from torchloom.core.steering.stop import end_at_boundary
from torchloom.core.turn import Turn
from torchloom.model.devices import Device
from torchloom.model.events import ChangeRequested, NodeDrained, WorkerProgress
from torchloom.model.fleet import Fleet, Job, JobState, Leaving, Node, Worker
from torchloom.model.steering import OperationRecord, Origin
from torchloom.model.timers import TimerKind
from torchloom.model.transaction.messages import Kind

STEP_S = 1.0
"""How long a step is taken to be where nobody knows: ranks are waited for a little longer then."""
TRIES = 6
"""So many saves are asked for …"""
AGAIN_S = 60.0
"""… the second so long after the first failed, each further one after twice the wait: half an hour in all."""


def drain_jobs(turn: Turn, node: Node, event: NodeDrained) -> None:
    """Every job with a worker there has to leave or, if the drain was withdrawn, stays."""
    if node.ends:
        return  # they are on their way already, and cannot stay
    reason = f"{event.by} drains {node.id}" + (f": {event.why}" if event.why else "")
    for name in sorted(node.jobs):
        job = turn.fleet.jobs[name]
        if job.leaving is not None and job.leaving.node != node.id:
            job.leaving.force |= event.force and event.move
            continue  # it is on its way from another drained node, and will not stop at this one
        job.leaving = None
        turn.cancel_timer(TimerKind.SAVE_AGAIN, job)
        if event.move and not job.ended:
            step_s = event.step_s.get(name, 0.0) or job.control.step_ns / 1e9 or STEP_S
            job.leaving = Leaving(node=node.id, by=event.by, why=reason, force=event.force, step_s=step_s)
            turn.fleet.leaving[name] = None


def leave_host(turn: Turn, node: Node, why: str) -> None:
    """Every job with a worker there has to leave, because the host itself is being taken away."""
    for name in sorted(node.jobs):
        job = turn.fleet.jobs[name]
        if job.ended:
            continue
        if job.leaving is None:
            step_s = job.control.step_ns / 1e9 or STEP_S
            job.leaving = Leaving(node=node.id, by=node.id, why=why, step_s=step_s)
            turn.fleet.leaving[name] = None
        job.leaving.host_ends = True
        if job.leaving.unsaved:
            turn.cancel_timer(TimerKind.SAVE_AGAIN, job)
            save_again(job)


def leave_device(
    turn: Turn, job: Job, device: Device, by: str, why: str, *, force: bool, step_s: float
) -> None:
    """A job has to leave one device; it may continue on others of the same node."""
    if job.ended:
        return
    if job.leaving is not None and not job.leaving.unsaved:  # it will not stop at this device either
        job.leaving.force |= force
        return
    turn.cancel_timer(TimerKind.SAVE_AGAIN, job)
    step_s = step_s or job.control.step_ns / 1e9 or STEP_S
    job.leaving = Leaving(node=device.node, device=device.id, by=by, why=why, force=force, step_s=step_s)
    turn.fleet.leaving[job.id] = None


def follow_leaving(turn: Turn) -> None:
    """Advance every job that has to leave, if possible."""
    for name in list(turn.fleet.leaving):
        job = turn.fleet.jobs.get(name)
        if job is None or job.leaving is None or job.ended or not _on_drained(turn.fleet, job):
            del turn.fleet.leaving[name]
            if job is not None:
                job.leaving = None
                turn.cancel_timer(TimerKind.SAVE_AGAIN, job)
        else:
            _advance(turn, job, job.leaving)


def save_again(job: Job) -> None:
    """Request a failed save again in this turn, if the job still has to leave."""
    if job.leaving is not None and job.leaving.unsaved:
        job.leaving.operation = job.leaving.unsaved = ""


def _on_drained(fleet: Fleet, job: Job) -> bool:
    return any(worker.alive and _must_leave(fleet.nodes[worker.node], worker) for worker in job.workers)


def _must_leave(node: Node, worker: Worker) -> bool:
    return node.closed or any(uses(worker, device) for device in node.barred)


def _advance(turn: Turn, job: Job, leaving: Leaving) -> None:
    leaving.stays = False
    if job.state is not JobState.RUNNING:
        leaving.note = f"it is {job.state}"  # its next start is elsewhere, or it is over
        return
    no_room = why_no_room(turn.fleet, job, where="other devices" if leaving.device else "other nodes")
    if no_room and not leaving.host_ends:
        # By the time there is room what was saved for this would be old, and the steps since then lost.
        leaving.operation = leaving.saved = ""
        _stay(leaving, f"{no_room}; it goes when there is room")
        return
    why_not = "" if others_hold_state(turn.fleet, job) else _save(turn, job, leaving)
    if why_not and not (leaving.force or leaving.host_ends):
        _stay(leaving, why_not)
    elif why_not or leaving.saved or others_hold_state(turn.fleet, job):
        _go(turn, job, leaving)


def others_hold_state(fleet: Fleet, job: Job) -> bool:
    """Whether a replica of a torchft job can leave without a save: enough others train for it to heal from.

    Of two replicas that have to leave, the second waits until the first trains again.
    """
    seat = job.spec.replica
    if seat is None:
        return False
    training = sum(
        other is not job
        and other.spec.replica is not None
        and other.spec.replica.set == seat.set
        and other.state is JobState.RUNNING
        and bool(other.control.step)
        for other in fleet.jobs.values()
    )
    return training >= max(1, seat.min_replicas)


def _stay(leaving: Leaving, why: str) -> None:
    leaving.stays, leaving.note = True, why


def _save(turn: Turn, job: Job, leaving: Leaving) -> str:
    """Ask for a checkpoint and wait until it is committed: on another node its memory would not be found.

    Why it cannot be had; empty while it may come.
    """
    if leaving.unsaved:
        return leaving.unsaved
    if job.checkpoints is None and job.spec.replica is not None:
        return "too few of the other replicas train, so its state would be lost; it goes when they do"
    if job.checkpoints is None:
        return "it has reported no checkpoints, so it would start over; --force moves it anyway"
    if job.paused:
        return "it is paused, so it cannot save; it goes when it is resumed"
    if not job.control.step:
        leaving.note = "not every rank has made a step yet"
        return ""
    if not leaving.operation:
        _ask(turn, job, leaving)
    record = job.operations.get(leaving.operation)
    if record is None or (record.ended and record.state != "applied"):
        why = "nothing is known of its checkpoint any more" if record is None else record.reason
        _not_saved(turn, job, leaving, why, again=record is None or not record.cancelled)
    elif record.ended:
        _committed(turn, job, leaving, record)
    return leaving.unsaved


def _ask(turn: Turn, job: Job, leaving: Leaving) -> None:
    leaving.operation = f"{job.id}.drain.{turn.seq}"
    leaving.note = "it is being saved first"
    change_requested(
        turn,
        ChangeRequested(
            job=job.id,
            operation=leaving.operation,
            kind=Kind.CHECKPOINT,
            two_phase=True,
            step_s=leaving.step_s,
            by=leaving.by,
            why=leaving.why,
            origin=Origin.DRAIN,
        ),
    )


def _committed(turn: Turn, job: Job, leaving: Leaving, record: OperationRecord) -> None:
    """Whether the state that all ranks took for this is whole in its store."""
    leaving.note = f"the state of step {_state_of(record)} is being written"
    leaving.saved, trouble = stored(job, record)
    if trouble:
        _not_saved(turn, job, leaving, trouble)


def stored(job: Job, record: OperationRecord | None) -> tuple[str, str]:
    """The name of the state that was asked for, once it is whole in its store; or why it will not be."""
    if record is None:
        return "", "nothing is known of its checkpoint any more"
    if not record.ended or record.state != "applied":
        return "", record.reason if record.ended else ""
    known, step = job.checkpoints, _state_of(record)
    if known is None:
        return "", "it has reported no checkpoints"
    generation = record.generation or job.generation
    if known.saved is not None and known.saved_generation == generation and known.saved.step >= step:
        return known.saved.name, ""
    if job.ended or job.generation != generation:
        return "", "the job ended or was restarted before the state was in the store"
    # Also the failure of an earlier save counts: the one that was asked for waits for it.
    failed = known.failing and (known.failed_at >= (generation, step) or known.failed_ns > record.ended_at_ns)
    return "", f"{known.failed_why} (incident {known.failing})" if failed else ""


def _state_of(record: OperationRecord) -> int:
    return 0 if record.training_step is None else record.training_step - 1


def _not_saved(turn: Turn, job: Job, leaving: Leaving, why: str, again: bool = True) -> None:
    """What ailed it may pass, a full disk for example. What a person cancelled is not asked for again."""
    leaving.tries += 1
    leaving.unsaved = f"it could not be saved: {why}"
    if again and leaving.tries < TRIES:
        wait_s = AGAIN_S * 2 ** (leaving.tries - 1)
        turn.set_timer(TimerKind.SAVE_AGAIN, job, wait_s)
        leaving.unsaved += f"; it is tried again after {wait_s / 60:.0f} min"
    else:
        what = "the device" if leaving.device else "the node"
        leaving.unsaved += f"; drain {what} again to retry, --force moves it anyway"


def _go(turn: Turn, job: Job, leaving: Leaving) -> None:
    """It is no failure, so it costs nothing of the restart budget."""
    move_job(turn, job, JobState.STOPPING, leaving.why)
    turn.cancel_timers(job)
    job.resizing = job.generation
    made, step_s = job.control.step, leaving.step_s
    progress = tuple(WorkerProgress(rank, made, step_s) for rank in range(len(job.workers)))
    end_at_boundary(turn, job, leaving.by, leaving.why, job.spec.stop_grace_s, progress, bool(made))
    leaving.note = "it is being ended at a step boundary"
