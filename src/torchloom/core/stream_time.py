"""One time for all: the stream's, which never goes back, and to which the clocks of hosts are converted.

The server of the bus stamps every event with its wall clock. If that is set back by an hour, time would
stop for an hour for every timer: no restart after a backoff, no end of a wait. So from there on time runs at
half its pace until the clock has caught up; a timer is then late by its own length at most.

Agents report times by their host's wall clock. Whom to blame, and how long a recovery took, follows from
comparing times of several hosts and of our own decisions: a host whose clock is an hour behind would seem to
have died before everything else. How far a clock is behind is read from every event: the stream stamps it a
little after its agent has sent it, so the smallest difference is the nearest to the truth, and never below.
It may grow slowly, because clocks drift.
"""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.model.events import CheckpointSaved, Envelope, Event, FirstStep, ScriptFailed, WorkerExited
from torchloom.model.fleet import Fleet
from torchloom.model.node import NodeClock
from torchloom.model.worker import EndRecord

DRIFT = 5_000
"""A clock goes wrong by one part in so many at most, if nobody sets it."""
SET_NS = 10 * 10**9
"""An event that seems to have been in transit for longer was not: the clock of its host was set back."""


def stream_time(fleet: Fleet, stamp_ns: int) -> int:
    """The time at which the stream's clock shows `stamp_ns`, after all that the fleet has seen."""
    passed_ns = max(0, stamp_ns - fleet.stamp_ns) if fleet.stamp_ns else 0
    return max(stamp_ns, fleet.now_ns + passed_ns // 2)


def in_stream_time(fleet: Fleet, envelope: Envelope) -> Event:
    """The event with its times by the stream's clock, none of them later than now."""
    event, node, now_ns = envelope.body, getattr(envelope.body, "node", ""), fleet.now_ns
    if not envelope.sent_ns or not node:
        return event
    clock = followed(fleet.clocks.get(node), now_ns - envelope.sent_ns, now_ns)
    fleet.clocks[node] = clock

    def told(at_ns: int) -> int:
        return min(now_ns, at_ns + clock.behind_ns) if at_ns else 0

    def ended(end: EndRecord | None) -> EndRecord | None:
        return None if end is None else replace(end, at_ns=told(end.at_ns))

    match event:
        case WorkerExited():
            return replace(event, at_ns=told(event.at_ns), end=ended(event.end))
        case ScriptFailed():
            return replace(event, at_ns=told(event.at_ns), end=ended(event.end))
        case FirstStep():
            return replace(event, at_ns=told(event.at_ns))
        case CheckpointSaved():
            return replace(event, saved=replace(event.saved, at_ns=told(event.saved.at_ns)))
    return event


def followed(known: NodeClock | None, behind_ns: int, now_ns: int, set_ns: int = SET_NS) -> NodeClock:
    """The clock after another look at it, which shows it `behind_ns` or less behind."""
    if known is None or behind_ns - known.behind_ns > set_ns:
        return NodeClock(behind_ns, now_ns)
    drifted_ns = max(0, now_ns - known.at_ns) // DRIFT
    return NodeClock(min(behind_ns, known.behind_ns + drifted_ns), max(now_ns, known.at_ns))
