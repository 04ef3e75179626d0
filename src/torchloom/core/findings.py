"""A detector's finding becomes an incident, and, where policy and evidence allow it, a recovery.

The finding is in the stream before this runs, so a replay comes to the same decision. One fault is one
incident: later findings about it add to it. What ends by itself is closed with how long it lasted.
"""

from __future__ import annotations

from torchloom.core.budget import made_progress, plan_restart
from torchloom.core.deciding import facts_of
from torchloom.core.detect.words import lasting, ranks_text
from torchloom.core.ending import end_generation, open_incident, settle
from torchloom.core.incidents import close, drop_old_evidence
from torchloom.core.moving import leave, move
from torchloom.core.numbers import goodput
from torchloom.core.policy import DONE, MOVES, STUCK, Choice, decide
from torchloom.core.probing import probe_on_suspicion
from torchloom.core.rolling_back import roll_back
from torchloom.core.steering import change_requested
from torchloom.core.telling import LINKS, key
from torchloom.core.turn import Turn
from torchloom.model.events import ChangeRequested, FindingEnded, FindingMade
from torchloom.model.findings import Finding
from torchloom.model.fleet import Act, Incident, Job, JobState, Plan
from torchloom.model.transaction.messages import Kind

REOPENED_NS = 300 * 10**9
"""Slowness that comes back within this time is the same incident."""
_ACTED_KEPT = 32
MOMENTARY = frozenset({"spike"})
"""Over as soon as it is said."""


def finding_made(turn: Turn, event: FindingMade) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is None or job.generation != event.generation:
        return
    if job.state not in (JobState.RUNNING, JobState.STARTING):
        return  # it is being ended or recovered already
    finding = event.finding
    plan = _plan(turn, job, event)
    choice = decide(job.spec.policy, finding, facts_of(turn, job, event, plan))
    if choice.action == "ignore":
        return
    incident = _incident(turn, job, finding)
    if not _is_known_better(incident, finding):
        _update(turn, job, incident, event)
        incident.decision = choice.reason
        probe_on_suspicion(turn, job, incident, finding)
    if choice.action in DONE:
        _act(turn, job, incident, event, plan, choice)
    elif finding.kind in MOMENTARY:
        close(turn, job, incident, "it was one step")
        job.findings.pop(key(finding), None)


def finding_ended(turn: Turn, event: FindingEnded) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is None or job.generation != event.generation:
        return
    incident = turn.fleet.incidents.get(job.findings.pop(event.key, ""))
    if incident is None or not incident.open or incident.id == job.incident:
        return
    finding = incident.finding
    who = ranks_text(finding.ranks) if finding is not None and finding.ranks else "the job"
    if finding is not None and finding.kind in STUCK:
        resolution = f"{who} went on after {lasting(event.lasted_s)}"
    elif event.lasted_s < 1:
        resolution = "it came once and not again"
    else:
        resolution = f"it was not found any more after {lasting(event.lasted_s)}"
    close(turn, job, incident, resolution)


def recovered(turn: Turn, job: Job, incident: Incident) -> None:
    """The first step after a recovery was made."""
    incident.ended_ns = turn.now_ns
    incident.goodput_after = goodput(turn.fleet, job, turn.now_ns)


def _plan(turn: Turn, job: Job, event: FindingMade) -> Plan:
    ran_s = (turn.now_ns - job.generation_at_ns) / 1e9
    progress = made_progress(job.spec.restarts, event.steps, ran_s)
    return plan_restart(job, _culprit(event.finding), progress, turn.chance)


def _culprit(finding: Finding) -> int | None:
    return finding.ranks[0] if len(finding.ranks) == 1 else None


def _incident(turn: Turn, job: Job, finding: Finding) -> Incident:
    """The open one about this fault, else one that has just been closed, else a new one."""
    name = key(finding)
    known = turn.fleet.incidents.get(job.findings.get(name, ""))
    if known is not None and known.open:
        return known
    if finding.kind not in STUCK:
        for id in reversed(job.incidents[-8:]):
            past = turn.fleet.incidents.get(id)
            if past is None or past.finding is None or key(past.finding) != name:
                continue
            if past.generation == job.generation and turn.now_ns - past.ended_ns < REOPENED_NS:
                past.open, past.resolution, past.ended_ns, past.links = True, "", 0, None
                job.findings[name] = past.id
                return past
            break
    made = open_incident(turn, job, finding.kind, finding.sentence, turn.now_ns)
    line = made.timeline
    began_ns = turn.now_ns - int(finding.lasting_s * 1e9)
    line.first_sign_ns = line.fault_ns = max(began_ns, job.generation_at_ns)
    line.decided_ns = 0
    made.goodput_before = goodput(turn.fleet, job, line.first_sign_ns)
    job.findings[name] = made.id
    drop_old_evidence(turn, job)
    return made


def _update(turn: Turn, job: Job, incident: Incident, event: FindingMade) -> None:
    finding = event.finding
    incident.kind, incident.verdict, incident.finding = finding.kind, finding.sentence, finding
    incident.culprit = _culprit(finding)
    if event.evidence:
        told = {one.rank: one for one in incident.evidence}
        told |= {one.rank: one for one in event.evidence}
        incident.evidence = tuple(told[rank] for rank in sorted(told))


def _is_known_better(incident: Incident, finding: Finding) -> bool:
    """Whose fault slow transfers are was measured: that they are slow is no news."""
    told = incident.finding
    if told is None or incident.links is None or finding.kind not in LINKS:
        return False
    return bool(told.ranks) and bool(finding.ask)


def _act(turn: Turn, job: Job, incident: Incident, event: FindingMade, plan: Plan, choice: Choice) -> None:
    """Carry out what was chosen."""
    if choice.action == "pause":
        _pause(turn, job, incident, choice.reason)
        return
    job.acts = [*job.acts, Act(choice.action, turn.now_ns)][-_ACTED_KEPT:]
    if choice.action == "rollback":
        roll_back(turn, job, incident, event, choice.reason)
    elif choice.action in MOVES and event.finding.kind not in STUCK:
        move(turn, job, incident, event, choice.action, choice.reason)
    else:
        if choice.action in MOVES:
            leave(turn, job, event.finding, choice.action, incident.verdict)
        _restart(turn, job, incident, plan, choice.reason)


def _pause(turn: Turn, job: Job, incident: Incident, reason: str) -> None:
    """Ask for it once, as a person would; what became of it is told with the job's operations."""
    if job.paused or incident.timeline.decided_ns:
        incident.decision = f"paused: {reason}"
        return
    job.acts = [*job.acts, Act("pause", turn.now_ns)][-_ACTED_KEPT:]
    incident.timeline.decided_ns = turn.now_ns
    incident.decision = f"to be paused at the next step: {reason}; `loom resume {job.id}` lets it go on"
    name = f"{incident.id}.pause"
    change_requested(
        turn, ChangeRequested(job=job.id, operation=name, kind=Kind.PAUSE, by="policy", why=incident.verdict)
    )


def _restart(turn: Turn, job: Job, incident: Incident, plan: Plan, reason: str) -> None:
    job.plan = plan
    incident.timeline.decided_ns = turn.now_ns
    end_generation(turn, job, incident, f"{incident.verdict}, so generation {job.generation} cannot go on")
    incident.decision = reason
    settle(turn, job)
