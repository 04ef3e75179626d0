"""The number that a life of a job has in the store, where the control service's own may be taken.

The control service counts the generations of a submission from 1. The store may hold those of an earlier one
of the same name: a job that was deleted and submitted again, or one that ran under another torchloom, on a
host that is lost. Its generations must not fence the new ones off, and a process of it that still lives must
be fenced off by them. So a submission (a *run*) takes the next free number in the store when it first comes
there, and records it create-only under `runs/<run>`; its later generations count on from that.

In a store that nobody used, both numbers are the same. The record is remembered in the memory tier too, for a
restore while the store is away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.store.generations import MAX_CLAIMS, read_generations
from torchloom.checkpoint.store.manifest import seal, unseal
from torchloom.checkpoint.store.names import FILE, Branch, branch_key, run_key
from torchloom.checkpoint.store.points import at
from torchloom.checkpoint.store.storage import Storage
from torchloom.errors import CheckpointDamaged, CheckpointExists, CheckpointMissing


@dataclass(frozen=True, slots=True)
class Begun:
    """Generation `generation` of the run is number `number` in the store."""

    generation: int
    number: int

    def number_of(self, generation: int) -> int:
        return self.number + generation - self.generation


def run_of(env: Mapping[str, str]) -> str:
    """Which submission this process belongs to; empty if nobody says."""
    text = env.get("LOOM_RUN", "")
    return text if FILE.fullmatch(text) else ""


def number_in_store(storage: Storage, job: str, run: str, generation: int) -> Begun:
    """What the store calls a generation of this run, given out if the run is new there."""
    key = run_key(job, run)
    damaged = False
    try:
        return _begun(unseal(storage.get(key), key))
    except CheckpointMissing:
        pass
    except CheckpointDamaged:
        damaged = True
    first = max(read_generations(storage, job).newest + 1, generation)
    for candidate in range(first, first + MAX_CLAIMS):
        # The fence itself is what two runs at once cannot both create.
        if storage.put_new(branch_key(job, Branch(candidate)), seal({"generation": candidate, "run": run})):
            break
    else:
        raise CheckpointExists(f"{MAX_CLAIMS} other runs of {job} took every generation tried")
    at("run.claimed")
    record = seal({"generation": generation, "number": candidate})
    if damaged:
        storage.put(key, [record])  # a number above all others is safe, whatever the old one was
    else:
        storage.put_new(key, record)
    at("run.recorded")
    return _begun(unseal(storage.get(key), key))


def _begun(record: Mapping[str, int]) -> Begun:
    return Begun(int(record["generation"]), int(record["number"]))


# -- beside the states in memory --------------------------------------------------------------------------


def remember(folder: Path | None, run: str, begun: Begun) -> None:
    """For when the store is away. A note that cannot be written is a note less."""
    if folder is not None:
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            note = {"run": run, "generation": begun.generation, "number": begun.number}
            tier.numbers(folder).write_text(json.dumps(note))


def recall(folder: Path | None, run: str) -> Begun | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        if folder is not None:
            note = json.loads(tier.numbers(folder).read_text())
            if note["run"] == run:
                return _begun(note)
    return None
