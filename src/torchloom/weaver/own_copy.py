"""Whether the nats-server of this host stores what the cluster stores.

After a full disk a server may take no part any more, although there is room again, and only its restart ends
that. The cluster works without it, and nothing is wrong until the next server is lost. Owns since when the
server's copies have come no nearer to the others'; one that catches up, however slowly, is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class OwnCopy:
    """Time comes as an argument so that tests need no clock."""

    _least: int = 0
    """How many messages it was behind when it was nearest."""
    _since_s: float = 0.0

    def look(self, behind: int, now_s: float) -> None:
        if not behind or not self._least or behind < self._least:
            self._least, self._since_s = behind, now_s

    def stuck_s(self, now_s: float) -> float:
        """For how long it has come no nearer; 0 if it is not behind."""
        return now_s - self._since_s if self._least else 0.0
