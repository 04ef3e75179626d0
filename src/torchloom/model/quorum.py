"""A replica of a torchft job: its place in the job, and what its manager asks the lighthouse for."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class ReplicaSeat(Struct, frozen=True):
    """A job that is one replica of a torchft job. The replicas share a lighthouse and nothing else."""

    set: str
    """Name of the torchft job that it is a part of."""
    index: int
    size: int
    """Replicas of the torchft job."""
    min_replicas: int = 1
    """With fewer, no step is committed."""


class LighthouseSite(Struct, frozen=True):
    """Where the lighthouse of a torchft job is. Every other node of the job relays to it."""

    node: str
    address: str
    port: int
    """Where that node's agent answers other agents, and knows the lighthouse's own port."""
    term: int
    """Raised whenever the lighthouse moves: nobody of an older term is believed."""
    awaited: tuple[str, ...] = ()
    """Nodes whose records of the job it must have before it forms a quorum."""


class LighthousePlace(Struct):
    """What the core remembers of a torchft job's lighthouse."""

    node: str
    term: int = 1
    former: list[str] = field(default_factory=list)
    """Nodes that it left because they were lost. If one returns, it learns where the lighthouse is now."""


class QuorumMember(Struct, frozen=True):
    """A replica that asks for a quorum."""

    replica_id: str
    step: int
    world_size: int
    shrink_only: bool
    commit_failures: int
    raw: bytes
    """The whole message as its manager sent it, to be passed on."""


Link = tuple[str, str]
"""Two nodes, in the order of their names."""


class CutOff(Struct, frozen=True):
    """A replica that cannot reach all others of its quorum."""

    links: tuple[Link, ...]
    """Those that do not work."""
    out: bool
    """Whether it is left out; the others may be too few without it."""


class CutOffReplica(Struct):
    """What the core remembers of it; kept by core.nodes.replica_links."""

    incident: str
    out: bool


class LinkNotice(Struct, frozen=True):
    """What a lighthouse has to report of a replica's links."""

    number: int
    door: str
    links: tuple[Link, ...]
    """Those that do not work; none: all work again."""
    out: bool
    others: int
    """Replicas that train without it."""
    why: str = ""
    """Why it takes part again."""


class ReplicaChange(Struct):
    """What all replicas of a torchft job do with the same commit: change settings, save or pause."""

    version: int
    values: dict[str, Any]
    at_step: int = 0
    """The first step that may use it; 0: the next one that all replicas can."""
    step: int | None = None
    """The step that uses it first; None: not decided."""
    awaited: dict[str, int] = field(default_factory=dict)
    """Ranks by door, of the replicas in the quorum that decided it."""
    refused: str = ""
    """Why no replica will apply it."""
    kind: str = "set"
    """`set`, `checkpoint` or `pause`."""

    @property
    def open(self) -> bool:
        return self.step is None and not self.refused


class ReplicaOutcome(Struct, frozen=True):
    """How a change of all replicas ended."""

    step: int | None = None
    """None: it was not applied anywhere."""
    reason: str = ""
    changed: tuple[tuple[str, Any, Any], ...] = ()
    """Address, before, after, of the first replica."""
    trouble: dict[str, dict[int, str]] = {}
    """By job and rank: why its script failed at it."""
