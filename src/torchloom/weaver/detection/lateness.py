"""How long a message was in transit, beyond what is usual from its node: buffered windows are old.

Agents stamp what they send by a clock that only runs; against ours it differs by any amount, but always by
the same. The shortest way seen gives that amount, and whatever took longer was held up: by a connection that
was cut, or because this process itself was paused. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchloom.core.stream_time import followed
from torchloom.model.node import NodeClock

LATE_NS = 10**9
AGREE_AFTER_NS = 30 * 10**9
"""A backlog is over some time. If everything seems late for this long, the clocks are compared again: a
host that was frozen with its clock is as far behind as it was frozen for."""
_NEVER_SET_NS = 1 << 62


@dataclass
class _Way:
    session: str
    clock: NodeClock
    late_since_ns: int | None = None


class Lateness:
    def __init__(self) -> None:
        self._ways: dict[str, _Way] = {}

    def of(self, node: str, session: str, sent_ns: int, now_ns: int) -> float:
        """Seconds that a message of an agent's session was held up; 0 when its sender did not stamp it."""
        if not sent_ns:
            return 0.0
        took_ns = now_ns - sent_ns
        way = self._ways.get(node)
        if way is None or way.session != session:
            way = self._ways[node] = _Way(session, NodeClock(took_ns, now_ns))
        way.clock = followed(way.clock, took_ns, now_ns, _NEVER_SET_NS)
        late_ns = took_ns - way.clock.behind_ns
        if late_ns < LATE_NS:
            way.late_since_ns = None
        elif way.late_since_ns is None:
            way.late_since_ns = now_ns
        elif now_ns - way.late_since_ns > AGREE_AFTER_NS:
            way.clock, way.late_since_ns, late_ns = NodeClock(took_ns, now_ns), None, 0
        return late_ns / 1e9
