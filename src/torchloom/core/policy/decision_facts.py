"""Gathers what a decision about a finding rests on: what can be done, what it costs, what was done before."""

from __future__ import annotations

from torchloom.core.placement import relocate
from torchloom.core.placement.lighthouses import why_waiting
from torchloom.core.policy import leave_out, rebalance, rollback
from torchloom.core.policy.actions import is_saved_first
from torchloom.core.policy.reporting import key
from torchloom.core.policy.rules import MOVES, DecisionFacts, wanted
from torchloom.core.recovery.incidents import recovery_s
from torchloom.core.turn import Turn
from torchloom.model.events import FindingMade
from torchloom.model.fleet import Job, RestartPlan

RESTART_S = 30.0
"""What a restart costs as long as none was seen."""

WHOLE = "the whole job, because its replicas share a process group and one cannot be restarted alone"
"""Of a job without torchft."""


def facts_of(turn: Turn, job: Job, event: FindingMade, plan: RestartPlan) -> DecisionFacts:
    finding, policy = event.finding, job.spec.policy
    action = wanted(policy, finding)
    why_not, how = "", plan.reason
    if action in MOVES:
        why_not = relocate.why_not(turn.fleet, job, finding, action)
        how = "" if why_not else relocate.how(turn.fleet, job, finding)
    elif action == "rebalance":
        why_not = rebalance.why_not(job, event)
        how = "" if why_not else rebalance.how(job, event)
    elif action == "leave-out":
        why_not = leave_out.why_not(job, finding)
        how = "" if why_not else leave_out.how(finding)
    elif action == "rollback":
        why_not = rollback.why_not(job, event)
        how = rollback.how(policy, event)
    elif action == "restart-replica":
        seat = job.spec.replica
        whom = (
            WHOLE if seat is None else f"only this replica; the other {seat.size - 1} of {seat.set} continue"
        )
        how = f"{plan.reason}; {whom}"
    elif action == "pause":
        how = ""
    if finding.traits.stuck:
        why_not = why_not or why_waiting(turn.fleet, job)
    return DecisionFacts(
        plan=plan,
        acts=job.acts,
        now_ns=turn.now_ns,
        why_not=why_not,
        how=how,
        advice=rebalance.advice(job, event) or leave_out.advice(job, finding),
        lost_s=_lost_s(turn, job, event),
        cost_s=_cost_s(turn, job, keeps_work=is_saved_first(job, finding)),
    )


def _lost_s(turn: Turn, job: Job, event: FindingMade) -> float:
    """Training time that the slowness has cost since its first sign."""
    share = event.finding.inputs.get("cost")
    known = turn.fleet.incidents.get(job.findings.get(key(event.finding), ""))
    if not isinstance(share, int | float) or known is None or not known.open:
        return 0.0
    return share * (turn.now_ns - known.timeline.first_sign_ns) / 1e9


def _cost_s(turn: Turn, job: Job, keeps_work: bool) -> float:
    """Of ending the generation: the restart, and the work since the last checkpoint, if it is done again."""
    restart_s = job.spec.policy.restart_cost_s
    if restart_s is None:
        past = [turn.fleet.incidents[id] for id in job.incidents[-8:] if id in turn.fleet.incidents]
        seen = [s for incident in past if (s := recovery_s(incident)) is not None]
        restart_s = max(seen, default=RESTART_S)
    if keeps_work:
        return restart_s
    known = job.checkpoints
    saved_ns = known.saved.at_ns if known is not None and known.saved is not None else 0
    return restart_s + max(0, turn.now_ns - max(saved_ns, job.generation_at_ns)) / 1e9
