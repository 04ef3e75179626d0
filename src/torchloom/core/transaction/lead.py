"""How many steps ahead of the ranks a change is placed."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torchloom.model.transaction.messages import Answer

SHORTEST_TRIP_S = 0.005
"""Nothing travels through bus, agent and mailbox reliably faster than this."""
UNKNOWN_STEP_S = 0.05
SPARE = 1.25
"""A wait at the boundary holds up the training, so a little more is allowed than the last trip took."""
LONGEST_LEAD = 100_000


def steps_ahead(answers: Iterable[Answer], took_s: float, tries: int) -> int:
    """The lead for the next try, given what it took all ranks to answer PREPARE and the tries before.

    ARM is read at the first boundary after it arrived, and CONFIRM should be there at the first boundary one
    more trip later. A trip, answer and next mail, is what an answer took beyond the step a rank was in the
    midst of. Too short a lead costs a try (TOO_LATE) or a wait at the boundary; each doubles what is allowed
    for the trips.
    """
    step_s = min((a.step_ns / 1e9 for a in answers if a.step_ns > 0), default=UNKNOWN_STEP_S)
    trip_s = max(SHORTEST_TRIP_S, took_s - step_s)
    lead = 2 * max(1, math.ceil(SPARE * trip_s * 2.0**tries / max(step_s, 1e-6)))
    return min(lead, LONGEST_LEAD)
