"""What is done about a finding: the job's policy over the defaults, its budgets, and the reason in words.

The defaults recover from hangs and only report slowness and odd numbers. A finding that is not certain is
acted on only after the job's own limit (`may_act`). Where a restart is not possible the job is left as it is,
and a person decides: ending a job that only seems to hang is worse than letting it be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
from msgspec import Struct

from torchloom.errors import UsageError
from torchloom.model.findings import Finding, FindingKind
from torchloom.model.fleet import Plan
from torchloom.model.policy import Action, Level, Policy

STUCK = frozenset({"hang", "communication-hang", "desync", "ordering-deadlock", "no-progress"})
HOUR_NS = 3600 * 10**9
LIKELY = 0.8
BY_EVENTS = frozenset({"crash", "node-lost"})
"""Kinds that the reducer knows from events; a policy has no say in them."""


class Choice(Struct, frozen=True):
    action: Action
    reason: str


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
    return "restart" if finding.kind in STUCK and finding.may_act else "report"


def decide(policy: Policy, finding: Finding, plan: Plan, acted_ns: Sequence[int], now_ns: int) -> Choice:
    """`plan` is what the restart budget of the job says; `acted_ns` when findings led to restarts before."""
    level, action = level_of(finding), wanted(policy, finding)
    if action == "ignore":
        return Choice("ignore", "the policy ignores it")
    if action == "report":
        return Choice("report", _why_only_told(policy, finding, level))
    if action == "pause" and policy.dry_run:
        return Choice("report", f"dry run, would be paused: {_basis(finding, level)}")
    if action == "pause":
        return Choice("pause", _basis(finding, level))
    why_not = _refusal(policy, plan, acted_ns, now_ns)
    if why_not:
        return Choice("report", f"not restarted: {why_not}")
    if policy.dry_run:
        return Choice("report", f"dry run, would be restarted: {_basis(finding, level)}; {plan.reason}")
    return Choice("restart", f"{_basis(finding, level)}; {plan.reason}")


def _refusal(policy: Policy, plan: Plan, acted_ns: Sequence[int], now_ns: int) -> str:
    recent = [at for at in acted_ns if now_ns - at < HOUR_NS]
    if len(recent) >= policy.restarts_per_hour:
        return f"the policy's budget of {policy.restarts_per_hour} restarts an hour is used up"
    if recent and now_ns - recent[-1] < policy.cooldown_s * 1e9:
        return f"the last one is less than {policy.cooldown_s:g} s ago"
    return "" if plan.restart else plan.reason


def _basis(finding: Finding, level: Level) -> str:
    if level == "certain":
        return f"certain ({finding.certainty})"
    if level == "lasting":
        return "it lasts longer than the limit for acting"
    return f"the policy says so for {finding.kind} that is {level}"


def _why_only_told(policy: Policy, finding: Finding, level: Level) -> str:
    if level in policy.rules.get(finding.kind, {}):
        return f"reported, as the policy says for {finding.kind} that is {level}"
    if finding.kind not in STUCK:
        return "reported only"
    limit = finding.inputs.get("act_s")
    later = f"; acted on after {limit:.0f} s" if isinstance(limit, float) and limit < 1e6 else ""
    return f"reported only, because it is not certain: {finding.certainty}{later}"


def policy_from(data: Mapping[str, Any]) -> Policy:
    """A policy file's content, or a request's; whatever is not understood is an error in one sentence."""
    try:
        policy = msgspec.convert(data, Policy)
    except msgspec.ValidationError as error:
        raise UsageError(f"The policy cannot be read: {error}.") from None
    kinds = [kind for kind in get_args(FindingKind) if kind not in BY_EVENTS]
    levels = get_args(Level)
    for kind, by_level in policy.rules.items():
        if kind not in kinds:
            raise UsageError(f"The policy names {kind!r}, which no detector finds; use {', '.join(kinds)}.")
        if kind in STUCK and "pause" in by_level.values():
            raise UsageError(f"The policy pauses on {kind}, but a job held up reaches no step for that.")
        for level in by_level:
            if level not in levels:
                raise UsageError(f"The policy names the level {level!r}; use {', '.join(levels)}.")
    if policy.restarts_per_hour < 0 or policy.cooldown_s < 0:
        raise UsageError("The budgets of a policy cannot be negative.")
    return policy
