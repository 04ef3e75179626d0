"""A job's config as a schedule: from which training step on which values hold.

Steps here are training steps, which continue after a restart. An entry's step is the first update that uses
it. A state saved after step s continues with step s + 1: "in force at" always asks about a step still to be
made. Versions are the numbers of operations and count decisions: of two changes of one place that are both
due, **the one decided later wins**, whatever their steps are. So an older change that lies ahead (a crash
put the job back before it, or it was planned) is superseded by a newer one that is due earlier.

Owns no protocol: entries are recorded from outcomes, and a starting worker is given the schedule, so that all
ranks of a new generation follow it without asking anybody.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torchloom.core.config.overrides import OWN
from torchloom.core.config.settings import HYPERPARAMETERS, Address, parse_address
from torchloom.model.transaction.config import Entry, Schedule

Holding = dict[str, tuple[int, object]]
"""Address → the version that decided it and its value, older decisions first."""


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """How a generation begins."""

    version: int
    """0: nothing was ever changed."""
    holding: Holding
    """To be applied before the first step, in this order."""
    following: Schedule
    """To be applied at their steps."""
    reason: str

    @property
    def values(self) -> dict[str, object]:
        return _values(self.holding)


def record(schedule: Schedule, entry: Entry) -> Schedule:
    """The schedule with one more version; one that is there already changes nothing."""
    if any(known.version == entry.version for known in schedule):
        return schedule
    return _ordered([*schedule, entry])


def _ordered(entries: Iterable[Entry]) -> Schedule:
    return tuple(sorted(entries, key=lambda e: (e.step, e.version)))


def lay_over(holding: Mapping[str, tuple[int, object]], entry: Entry) -> Holding:
    """What holds once this entry is due, too. A newer decision stays, and voids every older one it covers."""
    laid = dict(holding)
    for text, value in entry.values.items():
        address = parse_address(text)
        if any(v > entry.version and parse_address(known).covers(address) for known, (v, _) in laid.items()):
            continue
        for known in [k for k, (v, _) in laid.items() if v <= entry.version and _covers(address, k)]:
            del laid[known]
        laid[text] = (entry.version, value)
    return dict(sorted(laid.items(), key=lambda item: item[1][0]))


def _covers(address: Address, text: str) -> bool:
    return address.covers(parse_address(text))


def hold(entries: Iterable[Entry]) -> Holding:
    """What several entries amount to once all of them are due."""
    holding: Holding = {}
    for entry in sorted(entries, key=lambda e: e.version):
        holding = lay_over(holding, entry)
    return holding


def merge(entries: Iterable[Entry]) -> dict[str, object]:
    """The same without the versions: address → value, in the order of application."""
    return _values(hold(entries))


def _values(holding: Holding) -> dict[str, object]:
    return {text: value for text, (_, value) in holding.items()}


def in_force(schedule: Schedule, step: int) -> Schedule:
    """The entries that are due at step `step`."""
    return tuple(entry for entry in schedule if entry.step <= step)


def version_at(schedule: Schedule, step: int) -> int:
    """The version that step `step` is made with; 0 when nothing had been changed."""
    return max((entry.version for entry in in_force(schedule, step)), default=0)


def superseded(schedule: Schedule) -> dict[int, int]:
    """Versions of which nothing is ever used, because each place was decided anew for the same step or an
    earlier one; and the version that made the last of it void."""
    due: dict[str, list[int]] = {}
    found: dict[int, int] = {}
    for entry in sorted(schedule, key=lambda e: (e.step, -e.version)):
        by = [_first_after(due, parse_address(text), entry.version) for text in entry.values]
        if by and all(by):
            found[entry.version] = max(version for version in by if version)
        for text in entry.values:
            insort(due.setdefault(str(parse_address(text)), []), entry.version)
    return found


def _first_after(due: Mapping[str, list[int]], address: Address, version: int) -> int | None:
    """The oldest decision newer than `version` that covers this address."""
    name, optimizer, group = address.name, address.optimizer, address.group
    wider = {Address(name, o, g) for o in (None, optimizer) for g in (None, group)}
    newer = []
    for known in (due.get(str(one), []) for one in wider):
        at = bisect_right(known, version)
        newer += known[at : at + 1]
    return min(newer, default=None)


def ahead(schedule: Schedule, step: int) -> Schedule:
    """What takes effect after step `step`."""
    void = superseded(schedule)
    return tuple(entry for entry in schedule if entry.step > step and entry.version not in void)


def begin(schedule: Schedule, next_step: int | None) -> GenerationConfig:
    """How a generation begins whose first step is `next_step`; None when no training step is known."""
    if next_step is None:
        newest = max((entry.version for entry in schedule), default=0)
        reason = "the training step is not known, so the newest values hold from the start"
        return GenerationConfig(newest, hold(schedule), (), reason)
    later = ahead(schedule, next_step)
    version = version_at(schedule, next_step)
    reason = (
        f"version {version} holds at step {next_step}"
        if version
        else f"nothing is set before step {next_step}"
    )
    if later:
        reason += ", " + ", ".join(f"version {entry.version} follows at step {entry.step}" for entry in later)
    return GenerationConfig(version, hold(in_force(schedule, next_step)), later, reason)


def of_then(schedule: Schedule, next_step: int, version: int | None) -> Schedule:
    """The entries that a state was made with which continues with `next_step`, and what is due there.

    `version` is the newest that its generation used; what is newer and due before was made on another branch,
    unless it holds from the very first step on (step 0): samples that a rollback left out stay out for good.
    """
    return tuple(
        entry
        for entry in in_force(schedule, next_step)
        if version is None or entry.version <= version or entry.step in (0, next_step)
    )


def roll_back(
    schedule: Schedule,
    next_step: int,
    choice: Literal["keep", "revert"],
    *,
    today: int | None = None,
    version: int | None = None,
    note: str = "",
) -> Schedule:
    """The schedule once training continues with `next_step` because a person wants it.

    A restart after a failure needs none of this: it makes the same steps again and later versions follow.
    `revert` gives up what that state was not made with (see `of_then`). `keep` lets all that is in force at
    step `today` hold from `next_step` on; what is still ahead of today stays where it is.
    """
    if choice == "revert":
        return of_then(schedule, next_step, version)

    def kept(entry: Entry) -> Entry:
        if entry.step <= next_step or (today is not None and entry.step > today):
            return entry
        why = "; ".join(part for part in (entry.why, note) if part)
        return replace(entry, step=next_step, why=why)

    return _ordered(kept(entry) for entry in schedule)


def reverting(schedule: Schedule, kept: Collection[int]) -> dict[str, object]:
    """The change that brings every place back to what it held with only the versions `kept`.

    A param group where nothing was held then goes back to the script's own value, not to the number that the
    script happened to have there: its own schedule has continued since.
    """
    held = merge(entry for entry in schedule if entry.version in kept)
    back: dict[str, object] = {}
    for entry in sorted(schedule, key=lambda e: -e.version):
        if entry.version in kept:
            continue
        for text, before in (entry.before or dict.fromkeys(entry.values)).items():
            place = parse_address(text)
            words = [word for known, word in held.items() if _covers(parse_address(known), text)]
            if place.name in HYPERPARAMETERS:
                back[text] = words[-1] if words else {OWN: True}
            elif words or text in entry.before:
                back[text] = words[-1] if words else before
    return back
