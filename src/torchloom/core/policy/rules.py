"""What is done about a finding: the job's policy over the defaults, its budgets, and the reason in words.

The defaults recover from hangs and only report slowness and odd numbers. A finding that is not certain is
acted on only after the job's own limit (`may_act`). Where an action is not possible the job is left as it is,
and a person decides: ending a job that only seems to hang is worse than leaving it alone. parsing.py reads a
policy; actions.py carries out what is chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from torchloom.core.detect.words import lasting
from torchloom.model.findings import Finding
from torchloom.model.fleet import Act, RestartPlan
from torchloom.model.incidents import Decision, DecisionOutcome
from torchloom.model.policy import Action, Level, Policy

HOUR_NS = 3600 * 10**9
LIKELY = 0.8
MOVES: frozenset[Action] = frozenset({"evict", "promote", "drain"})
"""The job leaves the node of the rank that is to blame."""
RESTARTS: frozenset[Action] = frozenset({"restart", "restart-replica"})
ENDS: frozenset[Action] = MOVES | RESTARTS
"""They end a generation, so they share a budget."""


class DecisionFacts(Struct, frozen=True, kw_only=True):
    """What a decision rests on besides the finding."""

    plan: RestartPlan
    """What the restart budget of the job says."""
    acts: Sequence[Act] = ()
    """What findings led to before."""
    now_ns: int
    why_not: str = ""
    """Why the action that the policy names cannot be carried out; empty if it can."""
    lost_s: float = 0.0
    """Training time that the slowness has cost so far."""
    cost_s: float = 0.0
    """Training time that ending the generation would cost."""
    how: str = ""
    """How the action will be done."""
    advice: str = ""
    """What another action would gain, where this is only reported."""


def level_of(finding: Finding) -> Level:
    if finding.certain:
        return "certain"
    if finding.may_act:
        return "lasting"
    return "likely" if finding.confidence >= LIKELY else "suspected"


def wanted(policy: Policy, finding: Finding) -> Action:
    """The action that the policy names, budgets aside."""
    level = level_of(finding)
    told = policy.rules.get(finding.kind, {}).get(level)
    if told is not None:
        return told
    return finding.traits.default if finding.may_act else "report"


def decide(policy: Policy, finding: Finding, facts: DecisionFacts) -> Decision:
    level, action = level_of(finding), wanted(policy, finding)
    if action == "ignore":
        return Decision(action=action, outcome=DecisionOutcome.REPORTED, reason="the policy ignores it")
    if action == "report":
        reason = _why_only_told(policy, finding, level)
        reason += f"; {facts.advice}" if facts.advice else ""
        return Decision(action=action, outcome=DecisionOutcome.REPORTED, reason=reason)
    why_not = facts.why_not or _too_often(policy, action, facts) or _too_dear(finding, action, facts)
    if why_not:
        return Decision(action=action, outcome=DecisionOutcome.REFUSED, reason=why_not)
    basis = "; ".join(part for part in (_basis(finding, level), facts.how) if part)
    outcome = DecisionOutcome.DRY_RUN if policy.dry_run else DecisionOutcome.DONE
    return Decision(action=action, outcome=outcome, reason=basis)


def _too_often(policy: Policy, action: Action, facts: DecisionFacts) -> str:
    alike = ENDS if action in ENDS else frozenset({action})
    recent = [act for act in facts.acts if facts.now_ns - act.at_ns < HOUR_NS]
    count = sum(act.action in alike for act in recent)
    most, word = {
        "pause": (policy.pauses_per_hour, "pauses"),
        "rollback": (policy.rollbacks_per_hour, "rollbacks"),
        "rebalance": (policy.rebalances_per_hour, "rebalances"),
        "leave-out": (policy.leave_outs_per_hour, "replicas left out"),
    }.get(action, (policy.restarts_per_hour, "restarts"))
    if count >= most:
        return f"the policy's budget of {most} {word} an hour is used up"
    acted = [act for act in recent if act.action != "pause"]
    if action != "pause" and acted and facts.now_ns - acted[-1].at_ns < policy.cooldown_s * 1e9:
        return f"the last one is less than {policy.cooldown_s:g} s ago"
    return "" if facts.plan.restart or action not in ENDS else facts.plan.reason


def _too_dear(finding: Finding, action: Action, facts: DecisionFacts) -> str:
    """Slowness is acted on once it has cost more than acting: that never costs twice the best choice."""
    if action not in ENDS or finding.traits.stuck or finding.traits.numeric:
        return ""
    if facts.lost_s > facts.cost_s:
        return ""
    return (
        f"it has cost {lasting(facts.lost_s)} of training so far, which is less than the "
        f"{lasting(facts.cost_s)} that a restart costs"
    )


def _basis(finding: Finding, level: Level) -> str:
    if level == "certain":
        return f"certain ({finding.certainty})"
    if level == "lasting":
        return "it lasts longer than the limit for acting"
    return f"the policy says so for {finding.kind} that is {level}"


def _why_only_told(policy: Policy, finding: Finding, level: Level) -> str:
    if level in policy.rules.get(finding.kind, {}):
        return f"reported, as the policy says for {finding.kind} that is {level}"
    if not finding.traits.stuck:
        return "reported only"
    limit = finding.inputs.get("act_s")
    later = f"; acted on after {limit:.0f} s" if isinstance(limit, float) and limit < 1e6 else ""
    return f"reported only, because it is not certain: {finding.certainty}{later}"
