"""A detector's finding becomes an incident, and, where policy and evidence allow it, a recovery.

The finding is in the stream before this runs, so a replay comes to the same decision. One fault is one
incident: later findings about it add to it. What ends by itself is closed with how long it lasted.
"""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.core.detect.words import lasting, ranks_text
from torchloom.core.devices.explain import explanation
from torchloom.core.policy import leave_out, rebalance
from torchloom.core.policy.actions import act, culprit, is_under_way, plan_for
from torchloom.core.policy.decision_facts import facts_of
from torchloom.core.policy.link_probing import probe_on_suspicion
from torchloom.core.policy.reporting import key
from torchloom.core.policy.rules import decide, wanted
from torchloom.core.recovery.incidents import close, drop_old_evidence, goodput, open_incident
from torchloom.core.turn import Turn
from torchloom.model.events import FindingEnded, FindingMade, WitnessAnswered
from torchloom.model.findings import Finding
from torchloom.model.fleet import Fleet, Job, JobState
from torchloom.model.incidents import Decision, DecisionOutcome, EndedBy, Ending, Incident, Verdict

REOPENED_NS = 300 * 10**9
"""Slowness that comes back within this time is the same incident."""


def finding_made(turn: Turn, event: FindingMade) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is None or job.generation != event.generation:
        return
    if job.state not in (JobState.RUNNING, JobState.STARTING):
        return  # it is being ended or recovered already
    finding = event.finding
    plan = plan_for(turn, job, finding, event.steps)
    decision = decide(job.spec.policy, finding, facts_of(turn, job, event, plan))
    if decision.action == "ignore":
        return
    incident = _incident(turn, job, finding)
    under_way = (
        is_under_way(job, incident, finding)
        or rebalance.is_under_way(job, incident, decision.action)
        or leave_out.is_under_way(job, incident, decision.action)
    )
    if not _is_known_better(incident, finding):
        _update(turn, job, incident, event)
        if not under_way:
            incident.decided = replace(decision, way_back=_may_go_back(job, finding, decision))
            probe_on_suspicion(turn, job, incident, finding)
    if under_way:
        return
    if decision.outcome is DecisionOutcome.DONE:
        act(turn, job, incident, event, plan, wanted(job.spec.policy, finding), decision.reason)
    elif finding.traits.momentary:
        close(turn, job, incident, Ending(EndedBy.ITSELF, "it was one step"))
        job.findings.pop(key(finding), None)


def _may_go_back(job: Job, finding: Finding, decision: Decision) -> bool:
    """Whether a person can do something about numbers that stay broken and are left as they are."""
    left = decision.outcome is not DecisionOutcome.DONE
    return left and finding.traits.in_later_states and job.checkpoints is not None


def finding_ended(turn: Turn, event: FindingEnded) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is None or job.generation != event.generation or rebalance.holds_open(job, event.key):
        return
    incident = turn.fleet.incidents.get(job.findings.pop(event.key, ""))
    if incident is None or not incident.open or incident.id == job.incident:
        return
    finding = incident.finding
    who = ranks_text(finding.ranks) if finding is not None and finding.ranks else "the job"
    if finding is not None and finding.traits.stuck:
        resolution = f"{who} continued after {lasting(event.lasted_s)}"
    elif event.lasted_s < 1:
        resolution = "it came once and not again"
    else:
        resolution = f"it was not found any more after {lasting(event.lasted_s)}"
    close(turn, job, incident, Ending(EndedBy.ITSELF, resolution))


def witness_answered(turn: Turn, event: WitnessAnswered) -> None:
    """What the Flight Recorder said belongs to the hang it was asked about, also if that is being ended."""
    incident = stuck_incident(turn.fleet, event.job, event.generation)
    if incident is not None and incident.witness is None:
        incident.witness = event.witness


def stuck_incident(fleet: Fleet, job_id: str, generation: int) -> Incident | None:
    """The newest hang of a generation."""
    job = fleet.jobs.get(job_id)
    for id in reversed(job.incidents[-8:] if job is not None else ()):
        found = fleet.incidents.get(id)
        if found is None or found.generation != generation or found.finding is None:
            continue
        if found.finding.traits.stuck:
            return found
    return None


def _incident(turn: Turn, job: Job, finding: Finding) -> Incident:
    """The open one about this fault, else one that has just been closed, else a new one."""
    name = key(finding)
    known = turn.fleet.incidents.get(job.findings.get(name, ""))
    if known is not None and known.open:
        return known
    if not finding.traits.stuck:
        for id in reversed(job.incidents[-8:]):
            past = turn.fleet.incidents.get(id)
            if past is None or past.finding is None or key(past.finding) != name:
                continue
            if past.generation == job.generation and turn.now_ns - past.ended_ns < REOPENED_NS:
                past.open, past.ending, past.ended_ns, past.links = True, None, 0, None
                past.times += 1
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
    since_s = (turn.now_ns - incident.timeline.first_sign_ns) / 1e9
    repeats = f"{incident.times} times in {lasting(since_s)}" if incident.times > 1 else ""
    device = "" if finding.traits.numeric else explanation(turn.fleet, job, finding.ranks)
    incident.judged = Verdict(cause=finding.sentence, repeats=repeats, device=device)
    incident.kind, incident.finding = finding.kind, finding
    incident.culprit = culprit(finding)
    if event.evidence:
        told = {one.rank: one for one in incident.evidence}
        told |= {one.rank: one for one in event.evidence}
        incident.evidence = tuple(told[rank] for rank in sorted(told))


def _is_known_better(incident: Incident, finding: Finding) -> bool:
    """Whose fault slow transfers are was measured: that they are slow is no news."""
    told = incident.finding
    if told is None or incident.links is None or not finding.traits.link:
        return False
    return bool(told.ranks) and bool(finding.ask)
