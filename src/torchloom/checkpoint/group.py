"""Who this process is among the ranks of the job, and how ranks agree.

Owns rank, world, job and generation, and two ways to agree: collectively (`gather`, `share`), only while
restoring, when all ranks wait anyway; and through the process group's store (`Board`), which waits for
nobody's GPU and is used in the training loop. Without a process group there is nobody to agree with.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from torchloom.errors import CheckpointError
from torchloom.wire import store_values

LOOK_AGAIN_S = 0.02
"""Between two looks for a note in whose place somebody else has put something."""
REPLACED_WITHIN_S = 2.0
"""How long to look: if that was put there before the note, the note will replace it."""


@dataclass(frozen=True)
class SaveGroup:
    """The ranks that save together."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    connected: bool
    """There is a process group, so the ranks can talk."""

    @property
    def keeps_shared(self) -> bool:
        """Does this rank keep what all ranks of its host have in common?"""
        return self.local_rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value. A collective operation."""
        if not self.connected or self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def share(self, value: Any) -> Any:
        """Rank 0's value. A collective operation."""
        if not self.connected or self.world == 1:
            return value
        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]


def new_series(group: SaveGroup) -> str:
    """A name for the saves that are about to begin, for `share`; empty if ranks cannot agree on one."""
    return secrets.token_hex(4) if group.connected or group.world == 1 else ""


def here(env: Mapping[str, str]) -> SaveGroup:
    """From the process group if there is one, else from the launcher's variables."""
    connected = dist.is_available() and dist.is_initialized()
    rank = dist.get_rank() if connected else _number(env, "RANK", 0)
    world = dist.get_world_size() if connected else _number(env, "WORLD_SIZE", 1)
    alone = "LOCAL_RANK" not in env
    return SaveGroup(
        rank=rank,
        world=world,
        local_rank=rank if alone else _number(env, "LOCAL_RANK", 0),
        local_world=world if alone else _number(env, "LOCAL_WORLD_SIZE", 1),
        connected=connected,
    )


class Board:
    """Small notes between ranks in the store of the process group. What no rank wrote there is no note."""

    def __init__(self, group: SaveGroup, scope: str) -> None:
        self._group = group
        self._scope = f"loom/checkpoint/{scope}"
        self._values = store_values.current
        store = dist.distributed_c10d._get_default_store()
        self._store: Any = dist.PrefixStore(self._scope, store)

    def post(self, key: str, text: str) -> None:
        self._store.set(key, self._values.pack(self._name(key), text))

    def read(self, key: str) -> str | None:
        """Waits for the note. None: something is there, and for a while no rank has replaced it."""
        note = self._read(key, self._store.get(key))
        until = time.monotonic() + REPLACED_WITHIN_S
        while note is None and time.monotonic() < until:
            time.sleep(LOOK_AGAIN_S)
            note = self._read(key, self._store.get(key))
        return note

    def peek(self, key: str) -> str | None:
        """The note if it is there. Waits for nobody."""
        return self._read(key, self._store.get(key)) if self._store.check([key]) else None

    def read_within(self, keys: list[str], within_s: float) -> list[str]:
        """The notes, once all are there. Raises CheckpointError if they are not in time."""
        late = f"the other ranks did not answer within {within_s:g} s"
        until = time.monotonic() + within_s
        try:
            self._store.wait(keys, timedelta(seconds=within_s))
            while True:
                values = [
                    self._read(key, value)
                    for key, value in zip(keys, self._store.multi_get(keys), strict=True)
                ]
                notes = [note for note in values if note is not None]
                if len(notes) == len(keys):
                    return notes
                if time.monotonic() > until:
                    raise CheckpointError(late)
                time.sleep(LOOK_AGAIN_S)
        except RuntimeError as error:
            raise CheckpointError(late) from error

    def forget(self, key: str) -> None:
        self._store.delete_key(key)

    def has(self, key: str) -> bool:
        """Whether the note is there; False also when the process group is gone."""
        try:
            return self.peek(key) is not None
        except RuntimeError:
            return False

    def note_mine(self, topic: str, number: int) -> None:
        self.post(f"{topic}/{self._group.rank}", str(number))

    def lowest(self, topic: str) -> int | None:
        """The lowest of all ranks' numbers; waits for those that have not noted any. None: a rank's number
        was replaced by something else."""
        keys = [f"{topic}/{rank}" for rank in range(self._group.world)]
        found = [self._read(key, value) for key, value in zip(keys, self._store.multi_get(keys), strict=True)]
        numbers = [int(note) for note in found if note is not None]
        return min(numbers) if len(numbers) == len(keys) else None

    def _name(self, key: str) -> str:
        return f"{self._scope}/{key}"

    def _read(self, key: str, value: bytes) -> str | None:
        return self._values.unpack(self._name(key), value)


def job_name(env: Mapping[str, str]) -> str:
    """What the job is called in the store: torchloom's name for it, JOB_ID, or the script's."""
    script = Path(sys.argv[0]).stem if sys.argv else ""
    name = env.get("LOOM_JOB") or env.get("JOB_ID") or script or "job"
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).strip(".-")[:128] or "job"


def store_uri(env: Mapping[str, str], given: str | os.PathLike[str] | None) -> str:
    """Where checkpoints go: what the script says, CHECKPOINT_DIR, the agent's directory, ./checkpoints."""
    if given is not None and str(given):
        return str(given)
    if env.get("CHECKPOINT_DIR", "").strip():
        return env["CHECKPOINT_DIR"].strip()
    in_objects = env.get("USE_S3", "").strip().lower() in ("1", "true", "yes", "on")
    return ("" if in_objects else env.get("LOOM_CHECKPOINT_DIR", "").strip()) or "checkpoints"


def generation_of(env: Mapping[str, str]) -> int | None:
    """Which life of the job this is; None if lives are not counted."""
    text = env.get("LOOM_GENERATION", "")
    return int(text) if text.isdecimal() else None


def _number(env: Mapping[str, str], name: str, otherwise: int) -> int:
    text = env.get(name, "").strip()
    return int(text) if text.isdecimal() else otherwise
