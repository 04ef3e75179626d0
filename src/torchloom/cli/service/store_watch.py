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


@dataclass
class StoreWatch:
    cluster: bool
    """Other servers are needed to store anything."""
    was_full: bool = False
    """The disk had no room at some look since the server last stored."""
    restarts: int = 0
    """Since then."""

    def due(self, stuck_s: float, running_s: float, free_bytes: int) -> bool:
        """Whether to restart it now: stuck for so long, running since then, with so much room on its disk."""
        if stuck_s < STUCK_AFTER_S:
            self.was_full, self.restarts = False, 0
            return False
        if free_bytes < ROOM_BYTES:
            self.was_full = True
            return False
        if not self.cluster or self.was_full:
            wait_s, patience_s = APART_S, STUCK_AFTER_S
        else:
            wait_s = min(CLUSTER_APART_MOST_S, CLUSTER_APART_S * 2.0**self.restarts)
            patience_s = wait_s
        if running_s < wait_s or stuck_s < patience_s:
            return False
        self.restarts, self.was_full = self.restarts + 1, False
        return True
