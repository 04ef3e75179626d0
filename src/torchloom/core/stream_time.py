"""Time as the core counts it, which never goes back although a clock may be set back.

The server of the bus stamps every event with its wall clock. If that is set back by an hour, time would
stop for an hour for every timer: no restart after a backoff, no end of a wait. So from there on time runs at
half its pace until the clock has caught up; a timer is then late by its own length at most.
"""

from __future__ import annotations

from torchloom.model.fleet import Fleet


def stream_time(fleet: Fleet, stamp_ns: int) -> int:
    """The time at which the stream's clock shows `stamp_ns`, after all that the fleet has seen."""
    passed_ns = max(0, stamp_ns - fleet.stamp_ns) if fleet.stamp_ns else 0
    return max(stamp_ns, fleet.now_ns + passed_ns // 2)
