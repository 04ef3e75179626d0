"""A replica of a torchft job: its place in the job, and what its manager asks the lighthouse for."""

from __future__ import annotations

from msgspec import Struct


class ReplicaSeat(Struct, frozen=True, forbid_unknown_fields=True):
    """A job that is one replica of a torchft job. The replicas share a lighthouse and nothing else."""

    set: str
    """Name of the torchft job that it is a part of."""
    index: int
    size: int
    """Replicas of the torchft job."""
    min_replicas: int = 1
    """With fewer, no step is committed."""


class QuorumMember(Struct, frozen=True):
    """A replica that asks for a quorum."""

    replica_id: str
    step: int
    world_size: int
    shrink_only: bool
    commit_failures: int
    raw: bytes
    """The whole message as its manager sent it, to be passed on."""
