"""Which findings of one look are worth reporting now, and which are over. Judges no rank.

One fault is one key, so that a rank which is found again and again is reported once. A stuck job is reported
at once, and again when that becomes certain or has lasted twice as long; slowness only when several
looks agree for a while, and it is over only when it has not been found for a while.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchloom.model.findings import Finding

SLOW_LOOKS = 3
"""Looks for slowness (not windows), one after the other, that must agree …"""
SLOW_FOR_S = 6.0
"""… over at least this long …"""
NOBODYS_FOR_S = 12.0
"""… and this long if all ranks are slower and none is to blame: a job may do other work for a while, and
a rank may still stand out."""
CALM_S = 20.0
"""A fault that does not stall the job is over when it was not found for this long."""
SET_FROM = 3
"""More slow ranks than this are one fault, whichever of them a look finds."""
AGAIN_S = 15.0
"""A finding that may be acted on is reported again after this long: a budget may have come free."""
REVISED_S = 30.0
"""Another cause of the same slowness is reported at the earliest after this long."""
STUCK_KEY = "stuck"
LINKS_KEY = "communication-slow"


class Seen(Struct, frozen=True):
    """One fault as it was found so far. Times are by the clock of the judging weaver."""

    first_s: float
    last_s: float
    looks: int = 1
    look: int = 0
    """Number of the last look for slowness that found it."""
    lasting_s: float = 0.0
    said: Finding | None = None
    said_s: float = 0.0


class Ended(Struct, frozen=True):
    key: str
    lasted_s: float


Faults = Mapping[str, Seen]


def key(finding: Finding) -> str:
    """The same for everything that is one fault: a job is held up in one way at a time."""
    if finding.traits.stuck:
        return STUCK_KEY
    if finding.traits.link:
        return LINKS_KEY
    if finding.ranks and not (finding.traits.numeric or finding.traits.event):
        if len(finding.ranks) > SET_FROM:  # a set: one rank more or less is the same fault
            return f"slow set {finding.kind}"
        return f"slow {' '.join(map(str, finding.ranks))}"
    return finding.kind


def choose(
    faults: Faults,
    findings: Sequence[Finding],
    *,
    now_s: float,
    look: int,
    open_keys: Collection[str] = (),
    ready: bool = True,
) -> tuple[dict[str, Seen], list[Finding], list[Ended]]:
    """What to report and what is over. `look` is the number of the newest look for slowness, `open_keys` are
    faults that the stream has open, and `ready` says whether the evidence about what is stuck is there."""
    found: dict[str, Finding] = {}
    for finding in findings:
        found.setdefault(key(finding), finding)
    kept: dict[str, Seen] = {}
    say: list[Finding] = []
    ended: list[Ended] = []
    for name in dict.fromkeys((*faults, *found, *open_keys)):
        before, now = faults.get(name), found.get(name)
        if now is not None:
            seen = _seen(before, now, now_s, look)
            if _worth_saying(name, seen, now, now_s, ready):
                say.append(now)
                seen = replace(seen, said=now, said_s=now_s)
            kept[name] = seen
            continue
        # An earlier weaver may have reported it: then this one must close it.
        seen = before or Seen(now_s, now_s)
        if seen.said is None and name not in open_keys and look != seen.look:
            continue  # a look that does not agree: chance, until the same is found anew
        if now_s - seen.last_s < (0.0 if name == STUCK_KEY and before else CALM_S):
            kept[name] = seen
        elif seen.said is not None or name in open_keys:
            ended.append(Ended(name, seen.lasting_s or seen.last_s - seen.first_s))
    return kept, say, ended


def _seen(before: Seen | None, now: Finding, now_s: float, look: int) -> Seen:
    if before is None:
        return Seen(now_s, now_s, look=look, lasting_s=now.lasting_s)
    looks = before.looks + (look != before.look)
    return replace(before, last_s=now_s, looks=looks, look=look, lasting_s=now.lasting_s)


def _worth_saying(name: str, seen: Seen, now: Finding, now_s: float, ready: bool) -> bool:
    said = seen.said
    if name == STUCK_KEY:
        if not ready:
            return False
        if said is None or _news(said, now):
            return True
        if now.may_act and now_s - seen.said_s >= AGAIN_S:
            return True
        return now.lasting_s >= 2 * max(1.0, said.lasting_s)
    if now.traits.numeric or now.traits.event:
        if said is None or now.certain > said.certain:
            return True
        return now_s - seen.said_s >= AGAIN_S and _step(now) > _step(said)
    nobodys = now.traits.whole_job and now.traits.blames_nobody
    least_s = NOBODYS_FOR_S if nobodys else SLOW_FOR_S
    if seen.looks < SLOW_LOOKS or seen.last_s - seen.first_s < least_s:
        return False
    if said is None:
        return True
    if now_s - seen.said_s < REVISED_S:
        return False
    # What lasts twice as long has cost twice as much: then it may be worth acting on.
    return said.kind != now.kind or now_s - seen.said_s >= seen.said_s - seen.first_s


def _step(finding: Finding) -> float:
    step = finding.inputs.get("step")
    return step if isinstance(step, int | float) else 0.0


def _news(said: Finding, now: Finding) -> bool:
    return (said.kind, said.ranks, said.certain, said.may_act) != (
        now.kind,
        now.ranks,
        now.certain,
        now.may_act,
    )
