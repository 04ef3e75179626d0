"""Incidents: how they are opened, what they keep, how they end, and which belong together. Decides nothing.

A rank that dies of a closed connection and an unreachable node of its job are one fault. Which of the two is
noticed first is chance, and neither proves anything: the incident stays a crash until the silent node reports
how its rank ended, or somebody says that it is gone (nodes/lost_nodes.py).
"""

from __future__ import annotations

from torchloom.core.recovery.goodput import goodput, is_stuck
from torchloom.core.turn import Turn
from torchloom.model.fleet import Job, JobState, RestartPlan
from torchloom.model.incidents import (
    Decided,
    Decision,
    DecisionOutcome,
    EndedBy,
    Ending,
    ExitReport,
    Incident,
    Timeline,
    Verdict,
)

GENERATION_ENDED = Ending(EndedBy.GENERATION, "its generation ended")
EVIDENCE_KEPT = 8
"""Incidents of a job, the newest ones, that keep their stacks and collectives."""


def open_incident(turn: Turn, job: Job, kind: str, cause: str, at_ns: int) -> Incident:
    incident = Incident(
        id=f"{job.id}.{len(job.incidents) + 1}",
        job=job.id,
        generation=job.generation,
        kind=kind,
        judged=Verdict(cause=cause),
        timeline=Timeline(fault_ns=at_ns, detected_ns=at_ns, decided_ns=turn.now_ns),
    )
    turn.fleet.incidents[incident.id] = incident
    job.incidents.append(incident.id)
    return incident


def decision_of(plan: RestartPlan) -> Decision:
    action: Decided = "wait" if plan.waits else "restart" if plan.restart else "fail"
    return Decision(action=action, outcome=DecisionOutcome.DONE, reason=plan.reason)


def close_findings(turn: Turn, job: Job, ending: Ending, keep: str = "") -> None:
    """Close all incidents of a generation with it; `keep` is the incident of the recovery itself."""
    kept = turn.fleet.incidents.get(keep)
    for id in (*job.findings.values(), *job.silent.values()):
        incident = turn.fleet.incidents.get(id)
        if incident is not None and incident.open and id != keep:
            close(turn, job, incident, ending, kept)
    job.findings = {}
    job.silent = {node: id for node, id in job.silent.items() if id == keep}


def close(turn: Turn, job: Job, incident: Incident, ending: Ending, recovery: Incident | None = None) -> None:
    """It is over. `recovery` is one in progress: it counts the time without training from its own fault."""
    was_stuck, incident.open = is_stuck(incident), False
    if was_stuck:
        until_ns = turn.now_ns if recovery is None else recovery.timeline.fault_ns
        job.down_ns += max(0, until_ns - incident.timeline.fault_ns)
    incident.ending = ending
    incident.ended_ns = turn.now_ns
    incident.goodput_after = goodput(turn.fleet, job, turn.now_ns)


def drop_old_evidence(turn: Turn, job: Job) -> None:
    """Stacks of long ago explain nothing any more, and every snapshot would carry them."""
    if len(job.incidents) > EVIDENCE_KEPT:
        old = turn.fleet.incidents.get(job.incidents[-EVIDENCE_KEPT - 1])
        if old is not None:
            old.evidence, old.links = (), None


def recovered(turn: Turn, job: Job, incident: Incident) -> None:
    """The first step after a recovery was made."""
    incident.ended_ns = turn.now_ns
    incident.goodput_after = goodput(turn.fleet, job, turn.now_ns)


def followed(report: ExitReport) -> bool:
    """Whether it died because a peer was gone."""
    return report.end is not None and report.end.connection_lost


def take_over_silence(turn: Turn, job: Job, report: ExitReport) -> Incident | None:
    """What was said about a silent node of the job, if this exit may have followed from it: a crash now."""
    told = [turn.fleet.incidents.get(id) for id in job.silent.values()] if followed(report) else []
    for incident in told:
        if incident is not None and incident.open:
            incident.kind, incident.timeline.decided_ns = "crash", turn.now_ns
            return incident
    return None


def without_cause(turn: Turn, job: Job) -> Incident | None:
    """The incident of the recovery in progress, if all that is known of it is that ranks lost their peer."""
    incident = turn.fleet.incidents.get(job.incident)
    if job.state is not JobState.RECOVERING or incident is None or incident.kind != "crash":
        return None
    return incident if incident.culprit is not None and followed(incident.exits[0]) else None
