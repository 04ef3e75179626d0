"""How many events one agent may append, and when its door is closed: a pure choice with a reason.

An event that the bus has acknowledged is never dropped. So an agent that appends more than its share is
stopped before the stream: for a while the stream takes none of its events, while those of all others are
taken. An honest agent keeps its events meanwhile and appends them later. Stops nobody itself.

The rate is more than any honest agent sends for long. But the server refuses most of a large flood itself,
and stores few events of it while nobody else gets through. So while the stream takes no event in time, the
agent that most of the new events are from is stopped much earlier. An honest agent waits for each
acknowledgement before it appends the next event, so it appends hardly any then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

EVENTS_A_S, EVENTS_A_WORKER = 400.0, 40.0
BURST, BURST_A_WORKER = 4000.0, 400.0
"""How many events may come at once."""
PRESSED_FOR_S = 2.0
"""For so long the stream must have taken no event in time …"""
PRESSED = 20
"""… and an agent must have appended more than so many meanwhile."""
BYTES_A_S, BYTES_A_WORKER = 2 << 20, 128 << 10
BYTES_BURST, BYTES_BURST_A_WORKER = 64 << 20, 1 << 20
CLOSED_S, LONGEST_CLOSED_S = 10.0, 640.0
"""The first time; twice as long each time after."""
FORGIVEN_AFTER_S = 900.0
OVER_AFTER_S = 5.0
"""A flood is over when the door has been open for so long without another."""
MOST_WORKERS = 1024
MOST_NODES = 4096


@dataclass(frozen=True, slots=True)
class Closing:
    node: str
    for_s: float
    reason: str


@dataclass(slots=True)
class _Share:
    at_s: float
    left: float
    """Events that it may append now."""
    bytes: float
    read: int = 0
    """Bytes of its events that the weaver has read since the last look."""
    events: int = 0
    """Seen in the stream so far."""
    appended: int = 0
    """Since the stream began to take no event in time."""
    times: int = 0
    closed_until_s: float = 0.0
    since_s: float = 0.0
    """When the flood began; 0: there is none."""


@dataclass(slots=True)
class EventShares:
    """Time comes as an argument, in seconds of one clock."""

    workers: Callable[[str], int]
    _shares: dict[str, _Share] = field(default_factory=dict)
    _pressed_since_s: float | None = None

    def note(self, node: str, size: int) -> None:
        """An event of this node was read."""
        share = self._shares.get(node)
        if share is not None:
            share.read += size

    def look(self, now_s: float, events: Mapping[str, int], takes: bool) -> list[Closing]:
        """`events`: how many of each node the stream holds; `takes`: whether it takes one in time now."""
        for node, count in events.items():
            self._refill(node, now_s, count)
        if takes:
            self._pressed_since_s = None
            for share in self._shares.values():
                share.appended = 0
        elif self._pressed_since_s is None:
            self._pressed_since_s = now_s
        since_s = self._pressed_since_s
        pressed = since_s is not None and now_s - since_s >= PRESSED_FOR_S
        appended = sum(share.appended for share in self._shares.values())
        found = []
        for node in events:
            share = self._shares[node]
            if share.closed_until_s > now_s:
                continue
            why = self._too_much(share, pressed and 2 * share.appended > appended)
            if why:
                found.append(self._close(node, share, now_s, why))
        return found

    def closed(self, now_s: float) -> list[str]:
        return sorted(node for node, share in self._shares.items() if share.closed_until_s > now_s)

    def over(self, now_s: float) -> list[tuple[str, float]]:
        """Nodes whose flood is over now, and for how long it lasted. Each is named once."""
        found = []
        for node, share in self._shares.items():
            if share.since_s and now_s >= share.closed_until_s + OVER_AFTER_S:
                found.append((node, now_s - share.since_s))
                share.since_s = 0.0
            if share.times and now_s >= share.closed_until_s + FORGIVEN_AFTER_S:
                share.times = 0
        return found

    def _refill(self, node: str, now_s: float, count: int) -> None:
        workers = min(MOST_WORKERS, max(0, self.workers(node)))
        rate, burst = EVENTS_A_S + EVENTS_A_WORKER * workers, BURST + BURST_A_WORKER * workers
        bytes_burst = float(BYTES_BURST + BYTES_BURST_A_WORKER * workers)
        share = self._shares.get(node)
        if share is None:
            # What was there before this weaver looked first is no flood of now.
            if len(self._shares) >= MOST_NODES:
                self._shares.clear()
            self._shares[node] = _Share(now_s, burst, bytes_burst, events=count)
            return
        passed_s, share.at_s = max(0.0, now_s - share.at_s), now_s
        new, share.events = max(0, count - share.events), count
        share.left = min(burst, share.left + passed_s * rate) - new
        bytes_a_s = BYTES_A_S + BYTES_A_WORKER * workers
        share.bytes = min(bytes_burst, share.bytes + passed_s * bytes_a_s) - share.read
        share.read, share.appended = 0, share.appended + new

    @staticmethod
    def _too_much(share: _Share, pressed: bool) -> str:
        if share.bytes < 0:
            return "its events are larger together than its share"
        if share.left < 0:
            return "it appends more events than its share"
        if pressed and share.appended > PRESSED:
            return "the stream takes no events of others in time, and most of the new ones are from there"
        return ""

    def _close(self, node: str, share: _Share, now_s: float, why: str) -> Closing:
        for_s = min(LONGEST_CLOSED_S, CLOSED_S * 2**share.times)
        share.times += 1
        share.since_s = share.since_s or now_s
        share.closed_until_s = now_s + for_s
        # On probation: what grows back while it is closed is all that it has when its door opens.
        share.left = share.bytes = 0.0
        share.appended = 0
        return Closing(node, for_s, why)
