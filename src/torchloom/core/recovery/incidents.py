"""Incidents: how they are opened, what they keep, how they end, which belong together, and what they cost.

A rank that dies of a closed connection and an unreachable node of its job are one fault. Which of the two is
noticed first is chance, and neither proves anything: the incident stays a crash until the silent node reports
how its rank ended, or somebody says that it is gone (nodes/lost_nodes.py). Decides nothing.
"""

from __future__ import annotations

from torchloom.core.turn import Turn
from torchloom.model.fleet import Fleet, Job, JobState, RestartPlan
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

EVIDENCE_KEPT = 8
"""Incidents of a job, the newest ones, that keep their stacks and collectives."""


STOPPED_KEPT = 64


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


def generation_ended(turn: Turn, job: Job, incident: str, reason: str) -> Ending:
    """How incidents end with the job's present generation: because of which incident, or else for what."""
    cause = turn.fleet.incidents.get(incident)
    if cause is None:
        return Ending(EndedBy.GENERATION, f"generation {job.generation} ended: {reason}")
    whom = "" if cause.culprit is None else f" of rank {cause.culprit}"
    return Ending(
        EndedBy.GENERATION,
        f"generation {job.generation} ended because of incident {cause.id}, {cause.kind}{whom}",
    )


def close_findings(turn: Turn, job: Job, ending: Ending, keep: str = "") -> None:
    """Close all incidents of a generation with it; `keep` is the incident of the recovery itself."""
    kept = turn.fleet.incidents.get(keep)
    cut = (job.cut_off.incident,) if job.cut_off is not None else ()
    for id in (*job.findings.values(), *job.silent.values(), *cut):
        incident = turn.fleet.incidents.get(id)
        if incident is not None and incident.open and id != keep:
            close(turn, job, incident, ending, kept)
    job.findings, job.left_out, job.cut_off = {}, None, None
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
    drop_stopped(incident)


def drop_stopped(incident: Incident) -> None:
    """Of workers that we ended only some reports are kept once the incident is over: in a large job there are
    thousands of them, they say nothing any more, and every snapshot would carry them."""
    kept, stopped = [], 0
    for report in incident.exits:
        stopped += report.after_stop
        if not report.after_stop or stopped <= STOPPED_KEPT:
            kept.append(report)
    incident.more_exits += len(incident.exits) - len(kept)
    incident.exits = kept


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


def goodput(fleet: Fleet, job: Job, now_ns: int) -> float | None:
    """Share of the time since the first start that was worth something: in which the job was not down because
    of a fault, and did not make steps that were lost with a generation."""
    if not job.started_at_ns:
        return None
    wall = (job.ended_at_ns or now_ns) - job.started_at_ns
    if wall <= 0:
        return None
    down = job.down_ns + job.lost_ns
    incident = fleet.incidents.get(job.incident)
    if incident is not None and incident.timeline.fault_ns and not incident.timeline.first_step_ns:
        down += max(0, _up_again_ns(job, incident, now_ns) - incident.timeline.fault_ns)
    else:
        down += sum(max(0, now_ns - hang.timeline.fault_ns) for hang in lasting_hangs(fleet, job))
    return max(0.0, min(1.0, 1 - down / wall))


def count_lost(job: Job, incident: Incident, next_step: int | None) -> None:
    """How many steps a recovery has cost: by the script's own count where it has one (`next_step` is the one
    that comes next), else what the ended generation had made since the state that was restored, if any."""
    made = max(incident.exits, key=lambda r: r.steps, default=None)
    reached = [r.training_step for r in incident.exits if r.training_step is not None]
    if reached and next_step is not None:
        incident.lost_steps = max(0, max(reached) - next_step + 1)
    elif made is not None:
        incident.lost_steps = (
            _since_saved(job, incident, made) if incident.timeline.restored_ns else made.steps
        )
    if made is not None and made.steps and incident.lost_steps:
        share = min(1.0, incident.lost_steps / made.steps)
        job.lost_ns += int(share * _stepping_s(incident, made) * 1e9)


def _stepping_s(incident: Incident, made: ExitReport) -> float:
    """How long it made steps: from its first one to the fault. The time before is that of a start (imports),
    which counts as down where a fault made it necessary, and the time after counts as down too."""
    if not made.first_step_at_ns:
        return made.ran_s
    until_ns = min(made.at_ns, incident.timeline.fault_ns or made.at_ns)
    return min(made.ran_s, max(0.0, (until_ns - made.first_step_at_ns) / 1e9))


def _since_saved(job: Job, incident: Incident, made: ExitReport) -> int:
    """Steps of the ended generation that the restored state does not contain, of a script that counts none:
    by the generation's pace and the time since the save. A save that nobody reported in time was at most an
    interval ago."""
    saved = job.checkpoints.saved if job.checkpoints is not None else None
    stepping_s = _stepping_s(incident, made)
    if saved is None or not stepping_s:
        return made.steps
    since_s = (incident.timeline.fault_ns - saved.at_ns) / 1e9
    if since_s <= 0:
        return min(made.steps, saved.memory_interval or saved.interval)
    return min(made.steps, round(made.steps * since_s / stepping_s))


def lasting_hangs(fleet: Fleet, job: Job) -> list[Incident]:
    """Those that last and that nobody acts on yet: one at most, whatever its kind (policy.reporting.key)."""
    told = (fleet.incidents.get(id) for id in job.findings.values())
    return [incident for incident in told if incident is not None and is_stuck(incident)]


def is_stuck(incident: Incident) -> bool:
    return incident.open and incident.finding is not None and incident.finding.traits.stuck


def _up_again_ns(job: Job, incident: Incident, now_ns: int) -> int:
    """A job that completed without ever reporting a step counts as training since its processes started."""
    if job.state is JobState.COMPLETED and incident.timeline.spawned_ns:
        return incident.timeline.spawned_ns
    return job.ended_at_ns or now_ns


def recovery_s(incident: Incident) -> float | None:
    """From the fault to the first step after it."""
    line = incident.timeline
    if not line.fault_ns or not line.first_step_ns:
        return None
    return (line.first_step_ns - line.fault_ns) / 1e9
