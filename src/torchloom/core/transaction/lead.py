"""How many steps ahead of the ranks a change is placed."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torchloom.model.transaction.messages import Answer, Kind
from torchloom.model.transaction.state import Proposer

SHORTEST_TRIP_S = 0.005
"""Nothing travels through bus, agent and mailbox reliably faster than this."""
USUAL_TRIP_S = 0.010
UNKNOWN_STEP_S = 0.05
SPARE = 1.25
"""A wait at the boundary holds up the training, so a little more is allowed than the last trip took."""
LONGEST_LEAD = 100_000
AT_ONCE = frozenset({Kind.SET, Kind.PAUSE})
"""Kinds that need no answer before a step is named for them."""
GUESSES = 2
"""Tries for which that is done: a rank that is too late reports its place."""
FRESH_S = 1.0
FRESH_STEPS = 50
"""Where the ranks are is foreseen no further than this from where they were seen …"""
LONGEST_TRIP_S = 0.2
"""… and only while messages are quick: else they are asked."""


def steps_ahead(
    answers: Iterable[Answer], took_s: float, tries: int, pace_s: float = 0.0, usual_s: float = LONGEST_TRIP_S
) -> int:
    """The lead for the next try, given what it took all ranks to answer PREPARE and the tries before.

    ARM is read at the first boundary after it arrived, and CONFIRM should be there at the first boundary one
    more trip later. A trip, answer and next mail, is what an answer took beyond the step a rank was in the
    midst of; one that is much longer than usual was slow by chance, and counts for a quarter. Too short a
    lead costs a try (TOO_LATE) or a wait at the boundary; each doubles what is allowed for the trips.
    `pace_s` is what a step usually takes, if that is known: one alone may be much shorter.
    """
    step_s = pace_s or min((a.step_ns / 1e9 for a in answers if a.step_ns > 0), default=UNKNOWN_STEP_S)
    trip_s = max(SHORTEST_TRIP_S, min(took_s - step_s, max(2 * usual_s, took_s / 4)))
    lead = 2 * max(1, math.ceil(SPARE * trip_s * 2.0**tries / max(step_s, 1e-6)))
    return min(lead, LONGEST_LEAD)


def foreseen(state: Proposer, now_ns: int) -> int:
    """The step to arm the current operation for without asking first where the ranks are; 0: ask.

    It only saves a round. Ranks that are further than was thought say so, and are then asked.
    """
    assert state.current is not None
    plain = state.current.kind in AT_ONCE and state.current.at_step is None
    if not plain or state.tries > GUESSES or not state.position_ns:
        return 0
    trip_s = max(state.trip_ns / 1e9, USUAL_TRIP_S) * 2 ** (state.tries - 1)
    return arm_at_once(state.position, (now_ns - state.position_ns) / 1e9, state.pace_ns / 1e9, trip_s)


def arm_at_once(position: float, age_s: float, step_s: float, trip_s: float) -> int:
    """The step to arm for where the ranks were at `position` `age_s` ago; 0 if that is not to be foreseen.

    The boundary of step n is at position n. ARM is read at the first boundary one trip from now, with some to
    spare because an answer belongs to the trip, too; CONFIRM should be there one trip later.
    """
    if step_s <= 0 or age_s > max(FRESH_S, step_s) or age_s > FRESH_STEPS * step_s or trip_s > LONGEST_TRIP_S:
        return 0
    read_at = math.floor(position + (age_s + trip_s) / step_s) + 1
    return read_at + math.ceil(SPARE * trip_s / step_s)


def longer(trip_ns: int, took_ns: int, step_ns: int) -> int:
    """What a trip takes, from what was known of it and one more answer, which alone counts for little."""
    usual_ns = trip_ns or int(USUAL_TRIP_S * 1e9)
    seen_ns = min(max(took_ns - step_ns, int(SHORTEST_TRIP_S * 1e9)), 3 * usual_ns)
    return (7 * usual_ns + 3 * seen_ns) // 10
