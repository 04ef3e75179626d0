"""What one agent may send outside of the stream: messages and bytes a second, by its number of workers.

What is beyond is dropped before it waits in line with the messages of other agents, counted by node, and
shown at the node (`loom nodes`, metrics). Events are not dropped: the bus has acknowledged them, and a lost
exit would leave a job waiting. An agent that appends too many is stopped before the stream (doors.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from torchloom.wire import subjects

log = logging.getLogger(__name__)

MESSAGES_A_S, MESSAGES_A_WORKER = 100.0, 4.0
BYTES_A_S, BYTES_A_WORKER = 4 << 20, 128 << 10
BURST_S = 10.0
"""So many seconds' worth may come at once."""
MOST_WORKERS = 1024
"""What an agent says of itself counts up to here."""
MOST_NODES = 4096


class _Bucket:
    """What a node may still send."""

    __slots__ = ("at_s", "bytes", "messages")

    def __init__(self, at_s: float) -> None:
        self.at_s, self.messages, self.bytes = at_s, float("inf"), float("inf")


class Quotas:
    def __init__(self, workers: Callable[[str], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._workers, self._clock = workers, clock
        self._buckets: dict[str, _Bucket] = {}
        self.dropped: dict[str, int] = {}
        """Messages by node."""

    def nodes(self) -> list[str]:
        """Whose messages were seen."""
        return list(self._buckets)

    def admits(self, subject: str, size: int) -> bool:
        """Whether a message is taken. Called for each one before anything else is done with it."""
        node = subjects.node_of(subject)
        if node is None:
            return True
        now_s, workers = self._clock(), min(MOST_WORKERS, max(0, self._workers(node)))
        messages_a_s = MESSAGES_A_S + MESSAGES_A_WORKER * workers
        bytes_a_s = BYTES_A_S + BYTES_A_WORKER * workers
        bucket = self._buckets.get(node)
        if bucket is None:
            if len(self._buckets) >= MOST_NODES:
                self._buckets.clear()
            bucket = self._buckets[node] = _Bucket(now_s)
        passed_s, bucket.at_s = now_s - bucket.at_s, now_s
        bucket.messages = min(bucket.messages + passed_s * messages_a_s, BURST_S * messages_a_s)
        bucket.bytes = min(bucket.bytes + passed_s * bytes_a_s, BURST_S * bytes_a_s)
        if bucket.messages >= 1 and bucket.bytes >= size:
            bucket.messages -= 1
            bucket.bytes -= size
            return True
        self._drop(node)
        return False

    def _drop(self, node: str) -> None:
        if node not in self.dropped:
            if len(self.dropped) >= MOST_NODES:
                self.dropped.clear()
            log.warning("the agent of %s sends more than its share: messages of it are dropped", node)
        self.dropped[node] = self.dropped.get(node, 0) + 1
