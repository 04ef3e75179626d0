"""When a nats-server that stores nothing is restarted. Decides; the supervisor acts.

nats-server does not store again after a full disk until it is restarted. In a cluster a server also stores
nothing while there is no quorum, and there a restart makes it worse: supervisors that restart all servers
every few seconds keep the cluster from ever electing a leader. So a server of a cluster is restarted soon
only if its disk was full, and otherwise after a minute, then after two, four, up to ten.
"""

from __future__ import annotations

from dataclasses import dataclass

STUCK_AFTER_S = 5.0
ROOM_BYTES = 4 << 20
APART_S = 15.0
CLUSTER_APART_S, CLUSTER_APART_MOST_S = 60.0, 600.0
FULL_FOR_S = 60.0
"""A server that stops storing so soon after its disk was full does so because of that."""


@dataclass
class StoreWatch:
    cluster: bool
    """Other servers are needed to store anything."""
    full_at_s: float | None = None
    """At what age of the server its disk had last no room; None if it always had."""
    restarts: int = 0
    """Since the server last stored."""

    @property
    def full(self) -> bool:
        return self.full_at_s is not None

    def due(self, stuck_s: float, running_s: float, free_bytes: int) -> bool:
        """Whether to restart it now: stuck for so long, running since then, with so much room on its disk."""
        if free_bytes < ROOM_BYTES:
            self.full_at_s = running_s
            return False
        if self.full_at_s is not None and running_s < self.full_at_s:
            self.full_at_s = 0.0  # it was restarted meanwhile
        if stuck_s < STUCK_AFTER_S:
            self.restarts = 0
            if self.full_at_s is not None and running_s - self.full_at_s > FULL_FOR_S:
                self.full_at_s = None
            return False
        if not self.cluster or self.full_at_s is not None:
            wait_s, patience_s = APART_S, STUCK_AFTER_S
        else:
            wait_s = min(CLUSTER_APART_MOST_S, CLUSTER_APART_S * 2.0**self.restarts)
            patience_s = wait_s
        if running_s < wait_s or stuck_s < patience_s:
            return False
        self.restarts, self.full_at_s = self.restarts + 1, None
        return True
