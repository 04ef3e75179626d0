"""Carries out what a policy chose about a finding: a pause, other shares, a replica left out, a rollback, a
restart, a move.

Where all ranks train and only the pace is wrong, the job is saved first and resumes from there, so that
acting costs no work; it keeps training meanwhile. The wait for the save is bounded: if it takes too long, the
action is carried out without it. If the finding ends before that, the action is dropped.
A job that hangs cannot save, and one whose numbers are wrong must not. Choosing is done in rules.py.
"""

from __future__ import annotations

from torchloom.core.placement import relocate
from torchloom.core.placement.drain import stored
from torchloom.core.policy.leave_out import leave_out
from torchloom.core.policy.rebalance import rebalance
from torchloom.core.policy.rollback import roll_back
from torchloom.core.policy.rules import MOVES
from torchloom.core.recovery.budget import made_progress, plan_restart
from torchloom.core.recovery.generation_end import end_generation, settle
from torchloom.core.steering.driver import change_requested
from torchloom.core.turn import Turn
from torchloom.model.events import ChangeRequested, FindingMade
from torchloom.model.findings import Finding
from torchloom.model.fleet import Act, Job, JobState, RestartPlan
from torchloom.model.incidents import DONE, Decision, DecisionOutcome, Incident
from torchloom.model.policy import Acting, Action
from torchloom.model.steering import Origin
from torchloom.model.timers import TimerKind
from torchloom.model.transaction.messages import Kind

SAVE_S = 300.0
"""How long a save is waited for: the job trains meanwhile, only at the wrong pace."""
_ACTED_KEPT = 32


def plan_for(turn: Turn, job: Job, finding: Finding, steps: int) -> RestartPlan:
    """What the restart budget of the job says, after so many steps of this generation."""
    ran_s = (turn.now_ns - job.generation_at_ns) / 1e9
    progress = made_progress(job.spec.restarts, steps, ran_s)
    return plan_restart(job, culprit(finding), progress, turn.chance)


def culprit(finding: Finding) -> int | None:
    return finding.ranks[0] if len(finding.ranks) == 1 else None


def is_saved_first(job: Job, finding: Finding) -> bool:
    """Whether the job can be saved before it is ended because of this, and should be."""
    known = job.checkpoints
    can = known is not None and not known.failing and not job.paused and bool(job.control.step)
    return can and not _is_urgent(finding)


def is_under_way(job: Job, incident: Incident, finding: Finding) -> bool:
    """Whether this is acted on as soon as the job is saved."""
    return job.acting is not None and job.acting.incident == incident.id and not _is_urgent(finding)


def act(
    turn: Turn,
    job: Job,
    incident: Incident,
    event: FindingMade,
    plan: RestartPlan,
    action: Action,
    reason: str,
) -> None:
    """Carry out what was chosen, or have the job saved for it."""
    finding = event.finding
    if action == "pause":
        _pause(turn, job, incident, reason)
        return
    if job.acting is not None:
        if not _is_urgent(finding):
            busy = f"it is being saved to be {DONE[job.acting.action]}"
            incident.decided = Decision(action=action, outcome=DecisionOutcome.REFUSED, reason=busy)
            return
        _forget(turn, job)
    job.acts = [*job.acts, Act(action, turn.now_ns)][-_ACTED_KEPT:]
    if action == "rebalance":
        rebalance(turn, job, incident, event, reason)
        return
    if action == "leave-out":
        leave_out(turn, job, incident, event, reason)
        return
    if action == "rollback":
        roll_back(turn, job, incident, event, reason)
        return
    incident.timeline.decided_ns = turn.now_ns
    if action in MOVES:
        relocate.leave(turn, job, finding, action, incident.verdict)
    acting = Acting(
        incident=incident.id,
        action=action,
        reason=reason,
        node=finding.node,
        generation=job.generation,
        steps=event.steps,
        step_s=event.step_s,
        operation=f"{incident.id}.save.{turn.seq}",
        until_ns=turn.now_ns + int(SAVE_S * 1e9),
    )
    if is_saved_first(job, finding):
        _save_first(turn, job, incident, acting)
    else:
        _carry_out(turn, job, incident, finding, acting, plan)


def follow_acting(turn: Turn) -> None:
    """Advance every action that waits for a save, if possible."""
    for name in list(turn.fleet.acting):
        job = turn.fleet.jobs.get(name)
        acting = job.acting if job is not None else None
        if job is None or acting is None:
            del turn.fleet.acting[name]
            continue
        incident = turn.fleet.incidents.get(acting.incident)
        if job.generation != acting.generation or job.state is not JobState.RUNNING:
            _forget(turn, job)  # it begins anew for another reason; where it must not is kept
        elif incident is None or incident.finding is None or not incident.open:
            _give_up(turn, job, acting, incident, "it was over before")
        else:
            _look(turn, job, incident, incident.finding, acting)


def _is_urgent(finding: Finding) -> bool:
    """There is nothing to be saved: it does not train, or what it trained is not to be kept."""
    return finding.traits.stuck or finding.traits.numeric


def _save_first(turn: Turn, job: Job, incident: Incident, acting: Acting) -> None:
    job.acting = acting
    turn.fleet.acting[job.id] = None
    turn.set_timer(TimerKind.SAVE_FIRST, job, SAVE_S)
    _decided(incident, acting, DecisionOutcome.PENDING)
    change_requested(
        turn,
        ChangeRequested(
            job=job.id,
            operation=acting.operation,
            kind=Kind.CHECKPOINT,
            two_phase=True,
            step_s=acting.step_s,
            by="policy",
            why=incident.verdict,
            origin=Origin.POLICY,
            incident=incident.id,
        ),
    )


def _look(turn: Turn, job: Job, incident: Incident, finding: Finding, acting: Acting) -> None:
    record = job.operations.get(acting.operation)
    why_not = relocate.why_not(turn.fleet, job, finding, acting.action) if acting.action in MOVES else ""
    if finding.node != acting.node:
        why_not = "the evidence is about another node now"
    elif job.paused:
        why_not = "it was paused meanwhile"
    elif record is not None and record.cancelled:
        why_not = "somebody cancelled its checkpoint"
    if why_not:
        _give_up(turn, job, acting, incident, why_not)
        return
    saved, trouble = stored(job, record)
    if turn.now_ns >= acting.until_ns:
        trouble = trouble or f"not within {SAVE_S:g} s"
    if not saved and not trouble:
        return
    acting.reason += f"; saved first, {saved}" if saved else f"; it could not be saved first: {trouble}"
    acting.steps = max(acting.steps, job.control.step)
    _forget(turn, job)
    _carry_out(turn, job, incident, finding, acting, plan_for(turn, job, finding, acting.steps))


def _carry_out(
    turn: Turn, job: Job, incident: Incident, finding: Finding, acting: Acting, plan: RestartPlan
) -> None:
    _decided(incident, acting, DecisionOutcome.DONE)
    if acting.action in MOVES and not finding.traits.stuck:
        relocate.move(turn, job, incident, acting)
    else:
        job.plan = plan
        why = f"{incident.verdict}, so generation {job.generation} cannot continue"
        end_generation(turn, job, incident, why)
        _decided(incident, acting, DecisionOutcome.DONE)
        settle(turn, job)


def _decided(incident: Incident, acting: Acting, outcome: DecisionOutcome) -> None:
    incident.decided = Decision(action=acting.action, outcome=outcome, reason=acting.reason)


def _give_up(turn: Turn, job: Job, acting: Acting, incident: Incident | None, why: str) -> None:
    """The job stays as and where it is."""
    _forget(turn, job)
    if acting.action in MOVES:
        relocate.stay(turn, job, acting.node)
    if incident is not None:
        incident.decided = Decision(action=acting.action, outcome=DecisionOutcome.REFUSED, reason=why)


def _forget(turn: Turn, job: Job) -> None:
    job.acting = None
    turn.fleet.acting.pop(job.id, None)
    turn.cancel_timer(TimerKind.SAVE_FIRST, job)


def _pause(turn: Turn, job: Job, incident: Incident, reason: str) -> None:
    """Request it once, as a person would; the job's operations show its outcome."""
    if job.paused or incident.timeline.decided_ns:
        incident.decided = Decision(action="pause", outcome=DecisionOutcome.DONE, reason=reason)
        return
    job.acts = [*job.acts, Act("pause", turn.now_ns)][-_ACTED_KEPT:]
    incident.timeline.decided_ns = turn.now_ns
    incident.decided = Decision(action="pause", outcome=DecisionOutcome.PENDING, reason=reason)
    change_requested(
        turn,
        ChangeRequested(
            job=job.id,
            operation=f"{incident.id}.pause",
            kind=Kind.PAUSE,
            by="policy",
            why=incident.verdict,
            origin=Origin.POLICY,
            incident=incident.id,
        ),
    )
