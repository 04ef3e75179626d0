"""Which rank of how many this process is, as far as its data is concerned."""

from __future__ import annotations

import os
import sys
from typing import Any

from torchloom.errors import UsageError


def whereabouts(rank: int | None, world: int | None) -> tuple[int, int]:
    """(rank, world) as given, else of the process group, else of RANK and WORLD_SIZE, else a world of one.

    The ranks of all replicas of a torchft job are one world here: they train on different samples."""
    if (rank is None) != (world is None):
        raise UsageError("rank and world belong together", hint="give both or neither")
    if rank is None or world is None:
        rank, world = _found()
    if not (world >= 1 and 0 <= rank < world):
        raise UsageError(f"rank {rank} is not in a world of {world}")
    return rank, world


def _found() -> tuple[int, int]:
    rank, world = _of_process_group()
    if not os.environ.get("LOOM_REPLICA_SET"):
        return rank, world
    replica, replicas = _numbers("REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS")
    return replica * world + rank, replicas * world


def _of_process_group() -> tuple[int, int]:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return _numbers("RANK", "WORLD_SIZE")


def _numbers(place: str, size: str) -> tuple[int, int]:
    try:
        return int(os.environ.get(place, "0")), int(os.environ.get(size, "1"))
    except ValueError:
        raise UsageError(f"{place} and {size} must be whole numbers") from None
