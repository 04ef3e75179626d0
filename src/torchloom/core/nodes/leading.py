"""Who may judge: what is said of nodes and ranks from hearing them counts only from the weaver that leads.

A weaver that stood still does not know that it was replaced, and what it then says is of long ago. The stream
has the order: after a LeaseTaken nobody but its weaver is believed. What a person says counts through any.
"""

from __future__ import annotations

from torchloom.model.events import (
    Envelope,
    FindingEnded,
    FindingMade,
    NodeGone,
    NodeReachable,
    NodeUnreachable,
)
from torchloom.model.fleet import Fleet


def is_of_a_deposed_weaver(fleet: Fleet, envelope: Envelope) -> bool:
    match envelope.body:
        case NodeUnreachable() | NodeReachable() | FindingMade() | FindingEnded():
            pass
        case NodeGone(fenced=fenced) if fenced:
            pass
        case _:
            return False
    return fleet.leader not in ("", envelope.source)
