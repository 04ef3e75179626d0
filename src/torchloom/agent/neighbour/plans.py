"""What was ordered about a job's copies on this host, kept in a file beside its states.

So an agent that was restarted continues, and workers see by the file that their states are copied. The file
holds the job's key; its directory is private to this user, like the states themselves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from torchloom.checkpoint.memory import tier
from torchloom.home import Home
from torchloom.model.effects import StartWorkers
from torchloom.model.messages import MEMORY_SECRET
from torchloom.model.neighbours import NOBODY, MemoryPeer
from torchloom.private import make_private, why_not_private


class KeptPlan(msgspec.Struct, frozen=True):
    """Where the states of a job on this host are copied to."""

    generation: int
    """Of the newest start on this host: nothing is taken from an older one."""
    copy_to: MemoryPeer
    key: str

    @property
    def secret(self) -> bytes:
        return bytes.fromhex(self.key)


@dataclass(frozen=True)
class JobFolder:
    """The memory tier of a job on this host."""

    job: str
    path: Path


def keep(home: Home, effect: StartWorkers, env: Mapping[str, str]) -> KeptPlan | None:
    """Note what a start orders; None: it needs nothing. Only a plan that names a neighbour is kept."""
    folder = tier.directory(home.boxes, effect.job)
    path, secret = tier.neighbour(folder), env.get(MEMORY_SECRET, "")
    if effect.memory is None or not secret or home.boxes == home.boxes_fallback:
        with suppress(OSError):
            path.unlink()
        return None
    plan = KeptPlan(effect.generation, effect.memory.copy_to, secret)
    if plan.copy_to == NOBODY:
        with suppress(OSError):
            path.unlink()
        return plan
    try:
        make_private(folder)
        written = path.with_suffix(".new")
        with open(written, "wb", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
            file.write(msgspec.json.encode(plan))
        os.replace(written, path)
    except OSError:
        return None
    return plan


def read(folder: Path) -> KeptPlan | None:
    if why_not_private(folder):
        return None
    try:
        plan = msgspec.json.decode(tier.neighbour(folder).read_bytes(), type=KeptPlan)
        return plan if len(plan.secret) == 32 else None
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return None


def all_here(home: Home) -> list[tuple[JobFolder, KeptPlan]]:
    """The jobs on this host whose states are copied."""
    found = [(JobFolder(job, path), read(path)) for job, path in tier.found_in(home.boxes)]
    return [(folder, plan) for folder, plan in found if plan is not None]
