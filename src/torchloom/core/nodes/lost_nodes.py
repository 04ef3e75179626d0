"""Unreachable nodes, and hosts that a person confirmed to be gone: what is reported, and what follows.

Silence is reported as an incident of every job that has workers there, uncertain and without any action; it
is closed when the node is reachable again. Only a person's word makes it a loss, because only that is proof.
"""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.core.detect.words import lasting, ranks_text
from torchloom.core.recovery.budget import made_progress, plan_restart
from torchloom.core.recovery.culprit import secondary_note
from torchloom.core.recovery.generation_end import end_generation, worker_exited
from torchloom.core.recovery.incidents import (
    close,
    decision_of,
    followed,
    goodput,
    open_incident,
    without_cause,
)
from torchloom.core.turn import Turn
from torchloom.model.events import NodeGone, NodeUnreachable, WorkerExited
from torchloom.model.fleet import Fleet, Job, JobState, Node, NodeState, Worker
from torchloom.model.incidents import Decision, DecisionOutcome, EndedBy, Ending, Incident, Verdict
from torchloom.model.worker import Exit

HEARD = "it is reachable again, and nothing was restarted because of it,"
REOPENED_NS = 300 * 10**9
"""A node that falls silent again within this time is the same incident."""


def say_silent(turn: Turn, node: Node, event: NodeUnreachable) -> None:
    """One incident for each job with workers there; nothing else is done."""
    for name in sorted(node.jobs):
        job = turn.fleet.jobs[name]
        if node.id in job.silent:
            continue
        what = f"{node.id} has been silent for {lasting(event.silent_s)}; {_named(_lost(job, node))} there "
        what += "may well still run"
        waiting = without_cause(turn, job)
        if waiting is not None and not waiting.node:  # its peer may have gone with the node
            waiting.node, waiting.judged = node.id, replace(waiting.judged, silence=what)
            job.reason = f"{waiting.verdict}; {waiting.decision}"
            job.silent[node.id] = waiting.id
            continue
        incident = _reopened(turn, job, node) or _opened(turn, job, node, event.silent_s)
        incident.judged = Verdict(cause=what)
        reason = "reported only, because unreachable is not dead; if its host is gone: "
        reason += f"`loom node gone {node.id}`"
        incident.decided = Decision(action="report", outcome=DecisionOutcome.REPORTED, reason=reason)
        job.silent[node.id] = incident.id


def _opened(turn: Turn, job: Job, node: Node, silent_s: float) -> Incident:
    heard_ns = max(turn.now_ns - int(silent_s * 1e9), job.generation_at_ns)
    incident = open_incident(turn, job, "node-lost", "", heard_ns)
    incident.node = node.id
    incident.goodput_before = goodput(turn.fleet, job, heard_ns)
    line = incident.timeline
    line.first_sign_ns, line.detected_ns, line.decided_ns = heard_ns, turn.now_ns, 0
    return incident


def _reopened(turn: Turn, job: Job, node: Node) -> Incident | None:
    for name in reversed(job.incidents[-8:]):
        past = turn.fleet.incidents.get(name)
        if past is None or past.kind != "node-lost" or past.node != node.id:
            continue
        if past.generation != job.generation or turn.now_ns - past.ended_ns > REOPENED_NS:
            return None
        past.open, past.ending, past.ended_ns = True, None, 0
        return past
    return None


def say_heard(turn: Turn, node: str, how: str) -> None:
    """The node is reachable again: close the incidents about its silence."""
    for job in turn.fleet.jobs.values():
        incident = turn.fleet.incidents.get(job.silent.pop(node, ""))
        if incident is None or not incident.open or incident.id == job.incident:
            continue
        silent_s = (turn.now_ns - incident.timeline.first_sign_ns) / 1e9
        close(turn, job, incident, Ending(EndedBy.ITSELF, f"{how} after {lasting(silent_s)}"))


def waiting_note(fleet: Fleet, job: Job) -> str:
    """What a person must know of a job that cannot continue before silent nodes answer; else empty."""
    if job.state not in (JobState.RECOVERING, JobState.STOPPING):
        return ""
    nodes = dict.fromkeys(worker.node for worker in job.workers if worker.alive)
    silent = [node for node in nodes if fleet.nodes[node].state is not NodeState.READY]
    if not silent:
        return ""
    names = ", ".join(silent[:4]) + (" …" if len(silent) > 4 else "")
    return f"; waits for {names}, which is unreachable: if the host is gone, `loom node gone {silent[0]}`"


def lose_workers(turn: Turn, node: Node, event: NodeGone) -> None:
    """The workers of a host that is gone, or that had to end them, are dead: recover their jobs elsewhere."""
    names = sorted(node.jobs)
    if event.fenced:
        names = [n for n in names if n in event.fenced and turn.fleet.jobs[n].spec.policy.self_fence_s]
    for name in names:
        job = turn.fleet.jobs[name]
        lost = _lost(job, node)
        heard_ns = turn.now_ns
        said = turn.fleet.incidents.get(job.silent.get(node.id, ""))
        if said is not None:
            heard_ns = said.timeline.first_sign_ns
        if job.state in (JobState.STARTING, JobState.RUNNING):
            _recover(turn, job, node, event, lost, said, heard_ns)
        elif (alone := without_cause(turn, job)) is not None:
            _was_the_cause(turn, job, node, event, lost, alone)
        node.lost += [worker.ref for worker in lost]
        for worker in lost:
            ran_ns = heard_ns - worker.started_at_ns if worker.started_at_ns else 0
            exited = WorkerExited(
                node=node.id,
                ref=worker.ref,
                exit=Exit(None, None, "fence" if event.fenced else "operator"),
                at_ns=heard_ns,
                steps=event.steps.get(name, 0),
                ran_s=max(0, ran_ns) / 1e9,
            )
            worker_exited(turn, exited)
    if not event.fenced:
        say_heard(turn, node.id, f"{event.by} confirmed that its host is gone")


def _recover(
    turn: Turn,
    job: Job,
    node: Node,
    event: NodeGone,
    lost: list[Worker],
    said: Incident | None,
    heard_ns: int,
) -> None:
    """No rank is to blame, and what was said about the silence becomes the incident of the loss."""
    incident = said or _opened(turn, job, node, 0.0)
    incident.judged = Verdict(cause=_loss(job, node, event, lost))
    incident.timeline.decided_ns = turn.now_ns
    ran_s = max(0, heard_ns - job.generation_at_ns) / 1e9
    progress = made_progress(job.spec.restarts, event.steps.get(job.id, 0), ran_s)
    job.plan = plan_restart(job, None, progress, turn.chance)
    gone = "cannot be reached" if event.fenced else "is gone"
    end_generation(turn, job, incident, f"{node.id} {gone}, so generation {job.generation} cannot continue")


def _was_the_cause(
    turn: Turn, job: Job, node: Node, event: NodeGone, lost: list[Worker], incident: Incident
) -> None:
    """Ranks elsewhere died first, of the connection: they followed, and no rank is to blame."""
    assert job.plan is not None
    incident.kind, incident.node, incident.culprit = "node-lost", node.id, None
    incident.exits = [replace(one, secondary=True) if followed(one) else one for one in incident.exits]
    incident.judged = Verdict(cause=_loss(job, node, event, lost), others=secondary_note(incident.exits))
    job.plan = plan_restart(job, None, job.plan.progress, turn.chance)
    incident.decided = decision_of(job.plan)
    job.reason = f"{incident.verdict}; {job.plan.reason}"


def _loss(job: Job, node: Node, event: NodeGone, lost: list[Worker]) -> str:
    have = "has" if len(lost) == 1 else "have"
    if not event.fenced:
        return f"{event.by} confirmed that {node.id} is gone; {_named(lost)} {have} gone with it"
    fence_s = job.spec.policy.self_fence_s or 0.0
    return (
        f"{node.id} has been silent for more than {lasting(fence_s)}, after which it ends the workers of "
        f"this job (self_fence_s); {_named(lost)} {have} ended there"
    )


def _lost(job: Job, node: Node) -> list[Worker]:
    return [worker for worker in job.workers if worker.node == node.id and worker.alive]


def _named(workers: list[Worker]) -> str:
    """Ranks and their devices."""
    text = ranks_text(worker.ref.rank for worker in workers)
    devices = list(dict.fromkeys(use.device for worker in workers for use in worker.devices))
    if devices:
        text += f" ({', '.join(devices[:8])}{' …' if len(devices) > 8 else ''})"
    return text
