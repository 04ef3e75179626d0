"""Which node keeps copies of which states in memory: what the core chooses and the agents carry out."""

from __future__ import annotations

from msgspec import Struct


class MemoryPeer(Struct, frozen=True):
    """Where the agent of another node sends and takes states in memory."""

    node: str
    host: str
    port: int


class RankMemory(Struct, frozen=True):
    """Where the newest state of one rank may be, besides the store."""

    rank: int
    was_on: str
    """The node that ran this rank before; empty: nobody did."""
    peers: tuple[MemoryPeer, ...] = ()
    """Other nodes that may hold it, best first."""


class MemoryPlan(Struct, frozen=True):
    """What a node does about the states in memory of the ranks it starts."""

    copy_to: MemoryPeer
    """The neighbour that keeps copies of them; without a node's name: nobody does."""
    ranks: tuple[RankMemory, ...] = ()
    """What to fetch before the start if it is not here."""
    world: int = 0
    """So many ranks saved these states, and another number starts: the states of all of them are gathered
    here, to be resharded. 0: the states are those of the ranks that start here."""


NOBODY = MemoryPeer("", "", 0)
