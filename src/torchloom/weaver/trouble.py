"""What keeps the control plane from acting, in sentences: no bus, a bus that cannot store, nobody who leads.

Owns since when each lasts. Decides nothing: `/health`, `loom ps`, `loom nodes`, `loom incidents` and the
metrics show it, and the supervisor restarts a message bus that still stores nothing although the disk has
room again. What lasts long is an *episode*. It is recorded when it is over: before, nothing can be stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SHOWN_AFTER_S = 1.0
"""Shorter trouble is a reconnect, over before anybody could read about it."""


_UNRECORDED = 8
INCIDENT_AFTER_S = 5.0
"""What lasts longer is an incident."""


@dataclass
class Episode:
    """Trouble of any kind, from the first to the last of it."""

    why: str
    since_s: float
    lasted_s: float = 0.0
    """Once it is over."""


@dataclass
class Troubles:
    """Time comes as an argument so that tests need no clock."""

    _since_s: dict[str, float] = field(default_factory=dict)
    _words: dict[str, str] = field(default_factory=dict)
    _episode: Episode | None = None
    _over: list[Episode] = field(default_factory=list)

    def begin(self, kind: str, words: str, now_s: float) -> None:
        self._since_s.setdefault(kind, now_s)
        self._words[kind] = words
        if self._episode is None:
            self._episode = Episode(words, now_s)
        self._episode.why = words

    def end(self, kind: str, now_s: float) -> None:
        self._since_s.pop(kind, None)
        self._words.pop(kind, None)
        if not self._since_s and self._episode is not None:
            self._episode.lasted_s = now_s - self._episode.since_s
            if self._episode.lasted_s >= INCIDENT_AFTER_S:
                self._over = [*self._over, self._episode][-_UNRECORDED:]
            self._episode = None

    def open_episode(self, now_s: float) -> tuple[str, float] | None:
        """What keeps the service from acting now and for how long, if that is an incident."""
        found = self._episode
        if found is None or now_s - found.since_s < INCIDENT_AFTER_S:
            return None
        return found.why, now_s - found.since_s

    def unrecorded(self) -> Episode | None:
        """The oldest episode that is over and not in the stream yet."""
        return self._over[0] if self._over else None

    def recorded(self, episode: Episode) -> None:
        self._over.remove(episode)

    def lasts_s(self, kind: str, now_s: float) -> float:
        """For how long there has been trouble of this kind; 0 if there is none."""
        since_s = self._since_s.get(kind)
        return 0.0 if since_s is None else now_s - since_s

    def look(self, connected: bool, now_s: float) -> list[str]:
        """What keeps the service from acting, in sentences; none when all is well."""
        if connected:
            self.end("bus", now_s)
        else:
            self.begin("bus", "The message bus cannot be reached", now_s)
        return self.sentences(now_s)

    def stuck_s(self, connected: bool, now_s: float) -> float:
        """For how long the bus has answered but stored nothing: what only its restart ends."""
        return self.lasts_s("lease", now_s) if connected else 0.0

    def sentences(self, now_s: float) -> list[str]:
        return [
            f"{self._words[kind]} (for {now_s - since_s:.0f} s)"
            for kind, since_s in sorted(self._since_s.items(), key=lambda one: one[1])
            if now_s - since_s >= SHOWN_AFTER_S
        ]
