"""Records of torch's Flight Recorder: what a rank enqueued, and how far it came."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

State = Literal["scheduled", "started", "completed"]


class PairTotal(Struct, frozen=True, array_like=True):
    """How often a rank sent to and received from one peer."""

    group: str
    peer: int
    """Rank within the group."""
    sent: int
    received: int


class DumpEntry(Struct, frozen=True, kw_only=True):
    """One operation that the rank enqueued."""

    backend: str
    op: str
    group: str
    description: str = ""
    seq: int
    """Of the group's collectives; of a send or recv, counted by peer among those in the dump."""
    pairwise: bool = False
    peer: int | None = None
    """Rank within the group: the other side of a send or recv."""
    bytes: int = 0
    dtype: str = ""
    shape: str = ""
    state: State = "scheduled"
    over: bool = False
    """The rank is done with it."""
    created_ns: int = 0
    started_ns: int = 0
    completed_ns: int = 0
    timeout_s: float = 0.0
    place: str = ""
    """The innermost frame of the user's own code, if the dump has stacks."""


class Dump(Struct, frozen=True, kw_only=True):
    rank: int
    entries: tuple[DumpEntry, ...]
    """Oldest first."""
    pairs: tuple[PairTotal, ...] = ()
    """Sends to and recvs from each peer, as many as the dump shows."""
    groups: dict[str, tuple[int, ...]] = {}
    """Global ranks of each group, where the dump says so."""
    wrapped: bool = False
    """Older entries were overwritten: the ring was full."""
    version: str = ""
    library: str = ""


class FlightWitness(Struct, frozen=True, kw_only=True):
    """What torch's Flight Recorder says about a hang that a detector found."""

    agrees: bool
    """It blames the same ranks."""
    sentence: str
    lines: tuple[str, ...] = ()
    """One for each rank that answered."""

    @property
    def clause(self) -> str:
        """For the end of a verdict: what it says itself only where that is something else."""
        return "torch's Flight Recorder agrees" if self.agrees else self.sentence
