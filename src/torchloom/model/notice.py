"""A notice: one event of the stream as people follow it, with what it changed. No secrets, no behaviour."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Topic = Literal["job", "worker", "incident", "node", "device", "config", "system"]


class JobChange(Struct, frozen=True):
    id: str
    state: str
    reason: str
    generation: int


class IncidentChange(Struct, frozen=True):
    id: str
    job: str
    kind: str
    verdict: str
    decision: str
    open: bool
    resolution: str = ""
    action: str = ""
    outcome: str = ""
    """What was decided, and how far that got: the words of `Decision`."""


class Notice(Struct, frozen=True, kw_only=True):
    """What happened and its outcome. A pure function of the stream up to `seq`."""

    seq: int
    at_ns: int
    kind: str
    """The event's own name, for example `worker-exited`."""
    topics: tuple[Topic, ...]
    text: str
    """One sentence."""
    job: str = ""
    node: str = ""
    rank: int | None = None
    by: str = ""
    jobs: tuple[JobChange, ...] = ()
    """Jobs whose state, reason or generation changed."""
    incidents: tuple[IncidentChange, ...] = ()
    """Incidents that were opened, decided or closed."""
