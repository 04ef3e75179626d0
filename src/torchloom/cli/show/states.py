"""Values of options that come from the API: states, orders, labels. Reports a wrong value in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from torchloom.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

State = Literal[
    "waiting", "starting", "running", "recovering", "backoff", "stopping", "completed", "failed", "stopped"
]
EndState = Literal["completed", "failed", "stopped"]
Sort = Literal["submitted", "-submitted", "ended", "-ended", "id", "-id", "state", "-state"]
ConfigChoice = Literal["keep", "revert"]
Role = Literal["admin", "operator", "read"]
Topic = Literal["job", "worker", "incident", "node", "device", "config", "system"]


def check(given: Iterable[str], kind: Any, what: str) -> list[Any]:
    """Comma-separated words, each of them a member of a Literal."""
    known = get_args(kind)
    found = [word for text in given for word in text.split(",") if word]
    for word in found:
        if word not in known:
            raise UsageError(f"{what} {word!r} is unknown", hint=f"use one of {', '.join(known)}")
    return found


def pairs(given: Iterable[str], what: str) -> dict[str, str]:
    """`KEY=VALUE` as a mapping."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"{what} {text!r} is not of the form KEY=VALUE.")
        found[key] = value
    return found
