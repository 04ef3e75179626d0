"""An estimate of the clock that stamps the stream. Timers are set by that clock, so they fire by it.

It is the bus's, maybe on another host, and may differ from ours by any amount. A stamp is made before it
arrives here, so the highest lead over this host's clock (torchloom/boottime.py) that was seen is the nearest
to the truth. It is beyond it only where that clock was since set back by less than SET_BACK_NS, or is slower
than ours; then timers fire early, stay set (core/reducer.py) and fire again. Until the first record arrives
it is taken to be this host's wall clock.
"""

from __future__ import annotations

import time

SET_BACK_NS = 10 * 10**9
"""A stamp that is further behind than this was not delayed in transit: that clock was set."""


class StreamClock:
    def __init__(self) -> None:
        self._ahead_ns: int | None = None

    def heard(self, stamp_ns: int, local_ns: int) -> None:
        """A record with this stamp arrived."""
        ahead_ns, known = stamp_ns - local_ns, self._ahead_ns
        if known is None or ahead_ns > known or known - ahead_ns > SET_BACK_NS:
            self._ahead_ns = ahead_ns

    def now_ns(self, local_ns: int) -> int:
        """What it shows, or a little less (but see above)."""
        return time.time_ns() if self._ahead_ns is None else local_ns + self._ahead_ns
