"""Settings, saves and pauses of a torchft job: one version for all replicas, which apply it with one commit.

A replica is a job, but its settings are never changed alone: with another learning rate than the others it
would silently diverge. The lighthouse of the torchft job chooses the step (core/replica_changes.py); this
module keeps the records of all replicas and asks for the effect. Replicas that are paused resume each for
itself (driver.py): none makes a step before all of them have asked for the next quorum.
"""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.core.steering.operations import by_version, is_shared, open_record, schedule_change
from torchloom.core.turn import Turn
from torchloom.model.effects import ShareChange
from torchloom.model.events import ChangeShared
from torchloom.model.fleet import Fleet, Job, JobState, NodeState
from torchloom.model.quorum import ReplicaOutcome
from torchloom.model.steering import OperationRecord
from torchloom.model.transaction.messages import Kind

_DOES = {Kind.SET: "changes settings of", Kind.PAUSE: "pauses", Kind.CHECKPOINT: "saves"}


def replicas_of(fleet: Fleet, name: str) -> list[Job]:
    """The replicas of a torchft job that have not ended."""
    return [
        job
        for job in fleet.jobs.values()
        if job.spec.replica is not None
        and job.spec.replica.set == name
        and not job.ended
        and job.state is not JobState.STOPPING
    ]


def request(turn: Turn, job: Job, record: OperationRecord) -> None:
    """Open the operation in every replica, under the same version."""
    assert job.spec.replica is not None, job.id
    name = job.spec.replica.set
    replicas = replicas_of(turn.fleet, name) or [job]
    version = max(one.control.newest for one in replicas) + 1
    for one in replicas:
        one.control.newest = version
        mine = replace(record, version=version, generation=one.generation)
        open_record(turn, one, mine)
        mine.reason = "it waits until every replica has agreed"
    if record.kind is Kind.PAUSE and all(one.paused for one in replicas):
        _conclude(turn, name, version, ReplicaOutcome(step=job.control.step, reason="it is paused already"))
        return
    if record.kind is Kind.CHECKPOINT and any(one.paused for one in replicas):
        why = "the job is paused, and all replicas save at the same commit: resume it first"
        _conclude(turn, name, version, ReplicaOutcome(reason=why))
        return
    node = lighthouse_node(turn.fleet, name)
    if not node and record.kind is not Kind.SET:
        _conclude(turn, name, version, ReplicaOutcome(reason="no replica runs at the moment"))
        return
    if not node:
        why = "no replica runs at the moment: it holds from their start on"
        _conclude(turn, name, version, ReplicaOutcome(step=record.training_step or 0, reason=why))
        return
    turn.want(
        ShareChange(
            id=turn.next_effect_id(),
            cause=turn.seq,
            reason=f"{record.by} {_DOES[record.kind]} {name}",
            node=node,
            job=job.id,
            set=name,
            version=version,
            values=record.values,
            at_step=record.training_step or 0,
            kind=record.kind.value,
        )
    )


def lighthouse_node(fleet: Fleet, name: str) -> str:
    """Where to ask something of the lighthouse: its own node, or else one that relays to it. A reachable one,
    if there is any; empty while no replica runs."""
    held = [worker.node for one in replicas_of(fleet, name) for worker in one.workers if worker.alive]
    place = fleet.lighthouses.get(name)
    if held and place is not None and place.node:
        held.insert(0, place.node)
    return next((n for n in held if fleet.nodes[n].state is NodeState.READY), next(iter(held), ""))


def change_shared(turn: Turn, event: ChangeShared) -> None:
    """The replicas have applied it with one commit, or none of them will."""
    effect = turn.fleet.outbox.get(event.effect)
    turn.close(event.effect)
    if isinstance(effect, ShareChange):
        _conclude(turn, effect.set, effect.version, event.outcome)


def share_failed(turn: Turn, effect: ShareChange, why: str) -> None:
    _conclude(turn, effect.set, effect.version, ReplicaOutcome(reason=why))


def withdraw(turn: Turn, job: Job, record: OperationRecord, by: str) -> None:
    """Cancelled: if the replicas have not decided yet, none will apply it."""
    for effect in _open(turn, job):
        if effect.version == record.version and not effect.withdrawn:
            turn.close(effect.id)
            why = f"cancelled by {by}"
            turn.want(replace(effect, id=turn.next_effect_id(), cause=turn.seq, reason=why, withdrawn=why))


def replica_ended(turn: Turn, job: Job) -> None:
    """An open change may be what ended it (`max_steps`): the lighthouse reports how it ended. If nobody was
    asked, or cannot be any more, the record ends with the replica."""
    asked = {effect.version for effect in _open(turn, job)}
    for record in job.operations.values():
        if not record.ended and is_shared(job, record) and record.version not in asked:
            _end(turn, job, record, ReplicaOutcome(reason=f"the replica ended: {job.reason}"))


def _open(turn: Turn, job: Job) -> list[ShareChange]:
    seat = job.spec.replica
    shares = [effect for effect in turn.fleet.outbox.values() if isinstance(effect, ShareChange)]
    return [effect for effect in shares if seat is not None and effect.set == seat.set]


def _conclude(turn: Turn, name: str, version: int, outcome: ReplicaOutcome) -> None:
    """Also for replicas that have ended meanwhile, perhaps because of this change."""
    for job in turn.fleet.jobs.values():
        if job.spec.replica is None or job.spec.replica.set != name:
            continue
        record = by_version(job, version)
        if record is not None and not record.ended:
            _end(turn, job, record, outcome)


def _end(turn: Turn, job: Job, record: OperationRecord, outcome: ReplicaOutcome) -> None:
    record.state = "not applied" if outcome.step is None else "diverged" if outcome.trouble else "applied"
    record.reason, record.ended_at_ns = outcome.reason, turn.now_ns
    if outcome.trouble:
        mine = dict(outcome.trouble.get(job.id, {}))
        record.trouble, record.raised = mine, tuple(mine)
    if record.state == "diverged":
        failed = ", ".join(outcome.trouble)
        record.reason = f"the script of {failed} failed at it and kept the old values; {outcome.reason}"
    if outcome.step is not None:
        record.training_step, record.changed = outcome.step, outcome.changed
        match record.kind:
            case Kind.PAUSE:
                job.paused = not job.ended
            case Kind.CHECKPOINT:
                record.training_step = outcome.step + 1  # the state is that of the commit
            case _:
                schedule_change(turn, job, record, outcome.step)
    turn.ended_operations.append((job.id, record.id))
