"""A policy moves a job away from the node of a rank that is to blame: elsewhere, to its standby, or smaller.

Owns whether that can be done and how it begins. The job is ended at a step boundary if it trains, and the
next generation is placed as any other, only not there (`Job.avoid`); if there is ever no other place, the
node is used again, because a slow node is better than none. A drained node takes no new worker of any job
until a person says so.
"""

from __future__ import annotations

from torchloom.core.lifecycle import move_job
from torchloom.core.placement.place import room_elsewhere, unit, wanted, why_no_room
from torchloom.core.steering.stop import end_at_boundary
from torchloom.core.turn import Turn
from torchloom.model.events import WorkerProgress
from torchloom.model.findings import Finding
from torchloom.model.fleet import Drain, Fleet, Job, JobState
from torchloom.model.incidents import Incident
from torchloom.model.policy import Acting, Action


def why_not(fleet: Fleet, job: Job, finding: Finding, action: Action) -> str:
    """Why the job cannot leave the node that is to blame; empty if it can."""
    if job.state is not JobState.RUNNING:
        return f"the job is {job.state}"
    if job.leaving is not None:
        return f"it is leaving {job.leaving.node} already"
    if not finding.node or not finding.ranks:
        return "the evidence names no single node"
    if len(job.workers) > 1 and 2 * len(finding.ranks) > len(job.workers):
        return f"{len(finding.ranks)} of {len(job.workers)} ranks are named, which is no node's fault"
    if action == "promote" and not [spare for spare in job.spares if spare != finding.node]:
        return "it has no standby place on another node"
    return why_no_room(fleet, job, finding.node)


def how(fleet: Fleet, job: Job, finding: Finding) -> str:
    room = room_elsewhere(fleet, job, finding.node)
    smaller = "" if room >= wanted(job) else f" with {room // unit(job.spec) * unit(job.spec)} workers"
    return f"away from {finding.node}{smaller}"


def move(turn: Turn, job: Job, incident: Incident, acting: Acting) -> None:
    """End the generation at a boundary; the next one is placed elsewhere (see `leave`)."""
    move_job(turn, job, JobState.STOPPING, f"{incident.verdict}; {acting.reason}")
    turn.cancel_timers(job)
    job.resizing = job.generation
    ranks = range(len(job.workers))
    progress = tuple(WorkerProgress(rank, acting.steps, acting.step_s) for rank in ranks)
    hears = bool(job.control.step)
    end_at_boundary(turn, job, "policy", job.reason, job.spec.stop_grace_s, progress, hears)


def leave(turn: Turn, job: Job, finding: Finding, action: Action, why: str) -> None:
    """From the next generation on the job is elsewhere."""
    job.avoid[finding.node] = why
    if action == "drain":
        node = turn.fleet.nodes[finding.node]
        node.drained = Drain(policy_of=job.id, why=why)
        turn.seats_changed = True


def stay(turn: Turn, job: Job, node: str) -> None:
    """It does not leave the node after all."""
    job.avoid.pop(node, None)
    known = turn.fleet.nodes.get(node)
    if known is not None and known.drained is not None and known.drained.policy_of == job.id:
        known.drained, turn.room_appeared = None, True
