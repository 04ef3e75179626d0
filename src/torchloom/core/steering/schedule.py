"""A job's config as a schedule: from which training step on which values hold.

Steps here are training steps, which go on after a restart. An entry's step is the first update that uses it.
A state saved after step s goes on with step s + 1: "in force at" always asks about a step still to be made.
Owns no protocol: entries are recorded from outcomes, and a starting worker is given the schedule, so that all
ranks of a new generation follow it without asking anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchloom.core.steering.overrides import OWN
from torchloom.core.steering.settings import HYPERPARAMETERS, parse_address
from torchloom.model.transaction.config import Entry, Schedule


@dataclass(frozen=True, slots=True)
class Start:
    """How a generation begins."""

    version: int
    """0: nothing was ever changed."""
    values: dict[str, object]
    """To be applied before the first step, in this order."""
    following: Schedule
    """To be applied at their steps."""
    reason: str


def record(schedule: Schedule, entry: Entry) -> Schedule:
    """The schedule with one more version; one that is there already changes nothing."""
    if any(known.version == entry.version for known in schedule):
        return schedule
    return tuple(sorted([*schedule, entry], key=lambda e: (e.step, e.version)))


def merge(entries: Schedule) -> dict[str, object]:
    """What several entries in a row amount to. A later value makes void every earlier one that it covers."""
    merged: dict[str, object] = {}
    for entry in entries:
        for text, value in entry.values.items():
            address = parse_address(text)
            for earlier in [known for known in merged if address.covers(parse_address(known))]:
                del merged[earlier]
            merged[text] = value
    return merged


def in_force(schedule: Schedule, step: int) -> Schedule:
    """The entries that step `step` is made with."""
    return tuple(entry for entry in schedule if entry.step <= step)


def version_at(schedule: Schedule, step: int) -> int:
    """The version that step `step` is made with; 0 when nothing had been changed."""
    held = in_force(schedule, step)
    return held[-1].version if held else 0


def begin(schedule: Schedule, next_step: int | None) -> Start:
    """How a generation begins whose first step is `next_step`; None when no training step is known."""
    if next_step is None:
        newest = max((entry.version for entry in schedule), default=0)
        reason = "the training step is not known, so the newest values hold from the start"
        return Start(newest, merge(schedule), (), reason)
    held = in_force(schedule, next_step)
    later = schedule[len(held) :]
    version = version_at(schedule, next_step)
    reason = (
        f"version {version} holds at step {next_step}"
        if version
        else f"nothing is set before step {next_step}"
    )
    if later:
        reason += ", " + ", ".join(f"version {entry.version} follows at step {entry.step}" for entry in later)
    return Start(version, merge(held), later, reason)


def roll_back(
    schedule: Schedule, next_step: int, choice: Literal["keep", "revert"], kept: Entry | None = None
) -> tuple[Schedule, Schedule]:
    """The schedule once training goes on from `next_step` by a person's wish, and the entries given up.

    A restart after a failure needs none of this: it makes the same steps again and later versions follow.
    `revert` gives up what came later. `keep` lets the values of today hold from `next_step` on; `kept` is the
    entry (version, by, why) that records it, its step and values are filled in here.
    """
    held = in_force(schedule, next_step)
    later = schedule[len(held) :]
    if choice == "revert" or not later:
        return held, later
    assert kept is not None, "values that are kept need a version of their own"
    entry = Entry(kept.version, next_step, merge(later), kept.before, kept.by, kept.why, kept.at_ns)
    return record(held, entry), later


def reverting(schedule: Schedule, version: int) -> dict[str, object]:
    """The change that brings every place back to what it held with `version` (0: with none).

    A param group where nothing was held then goes back to the script's own value, not to the number that the
    script happened to have there: its own schedule has gone on since.
    """
    back: dict[str, object] = {}
    position = max((n for n, entry in enumerate(schedule) if entry.version == version), default=-1)
    held = merge(schedule[: position + 1])
    for entry in reversed(schedule[position + 1 :]):
        for text, before in entry.before.items():
            place = parse_address(text)
            if place.name in HYPERPARAMETERS:
                words = [word for known, word in held.items() if parse_address(known).covers(place)]
                back[text] = words[-1] if words else {OWN: True}
            else:
                back[text] = before
    return back
