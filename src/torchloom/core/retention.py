"""Which checkpoints to keep: a pure choice, with a reason for each.

Owns the keep rules. Deletes nothing: checkpoint/store/catalogue.py does, and asks here first. Without a
rule everything is kept. Whatever the rules say, three kinds are never given up: the newest whole one (what
a restart would take), pinned ones, and those in use (what the running generation resumed from, and what
somebody is about to restore). A damaged one counts for no rule and goes when as many newer whole ones are
there as the rules want: it never takes the place of a whole one, and is not hurried away either.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

_FINITE_KEPT = 2
"""Of those from before the numbers broke; the newest may be broken already: that shows a step later."""


@dataclass(frozen=True, slots=True)
class KeepRules:
    """A checkpoint is kept if any rule wants it."""

    last: int | None = None
    """The newest so many whole ones; None: all of them, whatever the other rules say."""
    every_steps: int = 0
    """Those whose step is a multiple of this, for good; 0: no such rule."""
    best: int = 0
    """The best so many by `metric`; 0: no such rule."""
    metric: str = "loss"
    best_is: Literal["lowest", "highest"] = "lowest"

    def __post_init__(self) -> None:
        if self.last is not None and self.last < 1:
            raise ValueError("at least the last checkpoint must be kept")
        if self.every_steps < 0 or self.best < 0:
            raise ValueError("a keep rule counts from 0")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One checkpoint, as far as the rules care."""

    name: str
    generation: int
    step: int
    whole: bool
    """Committed, all files there, not found damaged."""
    branch: int = 0
    """Within its generation."""
    resumable: bool = True
    """On the line of states a restart chooses from; not on a branch that was left."""
    pinned: bool = False
    finite: bool = True
    """False: its numbers were known not to be finite."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def age(self) -> tuple[int, int, int]:
        """Newer ones are greater."""
        return self.generation, self.branch, self.step


@dataclass(frozen=True, slots=True)
class KeepVerdict:
    """Keep or not, and why, in words that follow "because"."""

    name: str
    keep: bool
    reason: str


def judge(
    candidates: Iterable[Candidate], rules: KeepRules, in_use: Collection[str] = ()
) -> list[KeepVerdict]:
    """A verdict for every checkpoint, newest first."""
    ordered = sorted(candidates, key=lambda c: c.age, reverse=True)
    whole = [candidate for candidate in ordered if candidate.whole]
    newest = next((candidate for candidate in whole if candidate.resumable), None)
    last = {c.name for c in (whole if rules.last is None else whole[: rules.last])}
    best = {c.name for c in _by_metric(whole, rules)[: rules.best]}
    finite = {c.name for c in [c for c in whole if c.resumable and c.finite][:_FINITE_KEPT]}

    def reason_to_keep(candidate: Candidate) -> str:
        if candidate.pinned:
            return "it is pinned"
        if candidate.name in in_use:
            return "it is in use"
        if newest is None:
            return "there is no whole checkpoint, so nothing is removed"
        if candidate is newest:
            return "it is the newest whole one"
        if not candidate.whole and candidate.age > newest.age:
            return "it shows what went wrong since the newest whole one"
        if rules.last is None:
            return "no limit is set"
        if not candidate.whole:
            # A person may still want to see it, or a verification find it right after all.
            newer = sum(one.age > candidate.age for one in whole)
            return "" if newer >= rules.last else f"it is no older than the last {rules.last} whole ones"
        if candidate.name in last:
            return f"it is one of the last {rules.last}"
        if newest is not None and not newest.finite and candidate.name in finite:
            return "the numbers of newer ones are not finite"
        if rules.every_steps and candidate.step % rules.every_steps == 0:
            return f"its step is a multiple of {rules.every_steps}"
        if candidate.name in best:
            return f"it is one of the best {rules.best} by {rules.metric}"
        return ""

    verdicts: list[KeepVerdict] = []
    for candidate in ordered:
        reason = reason_to_keep(candidate)
        gone = "no rule keeps it" if candidate.whole else "it is damaged and enough newer ones are whole"
        verdicts.append(KeepVerdict(candidate.name, bool(reason), reason or gone))
    return verdicts


def _by_metric(whole: list[Candidate], rules: KeepRules) -> list[Candidate]:
    """Those with a usable value, best first; of equal ones the newer first."""
    sign = 1.0 if rules.best_is == "lowest" else -1.0
    usable = [c for c in whole if math.isfinite(c.metrics.get(rules.metric, math.nan))]
    return sorted(usable, key=lambda c: sign * c.metrics[rules.metric])
