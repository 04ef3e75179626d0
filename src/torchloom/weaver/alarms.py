"""When the fleet's timers are due, by this host's monotonic clock, which cannot be set.

A timer names a time of the stream's clock. How long that is from now is worked out when the timer is set, so
that a stream's clock that is set forward while it waits does not fire it at once. Fires nothing.
"""

from __future__ import annotations

from torchloom.model.fleet import Fleet
from torchloom.model.timers import Timer

LEAST_NS = 50_000_000
"""Between two tries of a timer that came too early for the core."""


class Alarms:
    def __init__(self) -> None:
        self._due: dict[str, tuple[int, int]] = {}
        """Timer → the time it names, and when that is here."""

    def note(self, fleet: Fleet, stream_ns: int, local_ns: int) -> None:
        """Look at the timers that are set at `stream_ns`, which is now."""
        for gone in [name for name in self._due if name not in fleet.timers]:
            del self._due[gone]
        for timer in fleet.timers.values():
            known = self._due.get(timer.id)
            if known is None or known[0] != timer.at_ns:
                self._due[timer.id] = (timer.at_ns, local_ns + max(0, timer.at_ns - stream_ns))

    def due(self, fleet: Fleet, stream_ns: int, local_ns: int) -> list[Timer]:
        """Timers whose time has come; `stream_ns` is what the core would take for now."""
        self.note(fleet, stream_ns, local_ns)
        found = []
        for timer in fleet.timers.values():
            if self._due[timer.id][1] <= local_ns:
                again_ns = local_ns + max(LEAST_NS, timer.at_ns - stream_ns)
                self._due[timer.id] = (timer.at_ns, again_ns)
                found.append(timer)
        return found
