"""A policy file's content, or a request's, as a policy; what is not understood is named, with what is near.

Owns the allowed content. rules.py owns what follows from it, and the reader of the file finds the line of a
wrong word (`PolicyProblem.word`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

import msgspec

from torchloom.core.policy.rules import ENDS, MOVES
from torchloom.errors import UsageError
from torchloom.model.finding_kinds import TRAITS, traits
from torchloom.model.policy import Action, Level, Policy

MOST_S = 86_400.0
LEAST_FENCE_S = 5.0
"""A new weaver leads after about 2 s: no worker may be killed because of that."""


class PolicyProblem(UsageError):
    """`word` is the wrong word, as written; `within` is its section."""

    def __init__(self, message: str, word: str = "", within: str = "") -> None:
        super().__init__(message.replace("?.", "?"))  # a hint may end the sentence with its own mark
        self.word, self.within = word, within


def policy_from(data: Mapping[str, Any]) -> Policy:
    """Raises PolicyProblem in one sentence."""
    fields = [field.name for field in msgspec.structs.fields(Policy)]
    for name in data:
        if name not in fields:
            raise PolicyProblem(f"A policy has no {name!r}{_near(name, fields)}.", name)
    rules = data.get("rules", {})
    if not isinstance(rules, Mapping):
        raise PolicyProblem("The rules of a policy are sections, as [rules.hang].", "rules")
    for kind, by_level in rules.items():
        _check_rule(kind, by_level)
    for name, value in data.items():
        if name != "rules":
            _check_value(name, value)
    try:
        return msgspec.convert(dict(data), Policy)
    except msgspec.ValidationError as error:
        raise PolicyProblem(f"The policy cannot be read: {error}.") from None


def _check_value(name: str, value: Any) -> None:
    """Every field by itself, so that the sentence can name it."""
    hints = {field.name: field.type for field in msgspec.structs.fields(Policy)}
    try:
        found = msgspec.convert(value, hints[name])
    except msgspec.ValidationError as error:
        raise PolicyProblem(f"{name} of the policy: {error}.", name) from None
    if name == "self_fence_s" and isinstance(found, float) and found < LEAST_FENCE_S:
        raise PolicyProblem(f"self_fence_s of the policy must be at least {LEAST_FENCE_S:g}.", name)
    if isinstance(found, int | float) and not isinstance(found, bool) and not 0 <= found <= MOST_S:
        raise PolicyProblem(f"{name} of the policy must be from 0 to {MOST_S:g}, not {found:g}.", name)


def _check_rule(kind: str, by_level: Any) -> None:
    kinds = [kind for kind, known in TRAITS.items() if not known.from_events]
    levels, actions = get_args(Level), get_args(Action)
    within = f"rules.{kind}"
    if kind not in kinds:
        near = _near(kind, kinds) or f"; use {', '.join(kinds)}"
        raise PolicyProblem(f"The policy names {kind!r}, which no detector finds{near}.", kind, within)
    if not isinstance(by_level, Mapping):
        raise PolicyProblem(f"The rule for {kind} is a section, as [rules.{kind}].", kind)
    for level, action in by_level.items():
        if level not in levels:
            near = _near(level, levels) or f"; use {', '.join(levels)}"
            raise PolicyProblem(f"The policy names the level {level!r}{near}.", level, within)
        if action not in actions:
            near = _near(str(action), actions) or f"; use {', '.join(actions)}"
            raise PolicyProblem(f"The policy names the action {action!r}{near}.", level, within)
        why_not = _senseless(kind, action)
        if why_not:
            raise PolicyProblem(f"The policy cannot {action} on {kind}: {why_not}.", level, within)


def _senseless(kind: str, action: Action) -> str:
    known = traits(kind)
    if action == "pause" and known.stuck:
        return "a stalled job reaches no step for that"
    if action == "rollback" and not known.numeric:
        numeric = sorted(name for name, each in TRAITS.items() if each.numeric)
        return f"going back helps where numbers are wrong ({', '.join(numeric)})"
    if action == "rebalance" and not known.by_sample:
        slow = sorted(name for name, each in TRAITS.items() if each.by_sample)
        return f"fewer samples help where a rank is slower ({', '.join(slow)})"
    if action == "leave-out" and not known.by_replica:
        slow = sorted(name for name, each in TRAITS.items() if each.by_replica)
        return f"only a replica of a torchft job can be left out ({', '.join(slow)})"
    if action in ENDS and known.blames_nobody:
        return "no rank and no node is to blame for it"
    if action in MOVES and not known.may_move:
        return "another node computes the same"
    return ""


def _near(word: str, known: Iterable[str]) -> str:
    found = get_close_matches(word, list(known), 1)
    return f"; did you mean {found[0]}?" if found else ""
