"""The number that a life of a job has in the store, where the control service's own may be taken.

The control service counts the generations of a submission from 1. The store may hold those of an earlier one
of the same name: a job that was deleted and submitted again, or one that ran under another torchloom, on a
host that is lost. Its generations must not fence the new ones off, and a process of it that still lives must
be fenced off by them. So a submission (a *run*) takes the next free number in the store when it first comes
there, and records it create-only under `runs/<run>`; its later generations count on from that.

A number belongs to one run: every fence `generations/<G>` names the run that created it. A run begins a
number only after it owns every number from its first one up to it (`begin_run`), creating those of lives that
never reached the store. So if another run has begun since, one of those numbers is that run's, or a higher
one is, and this run is refused, whatever number it picks.

In an unused store, both numbers are the same. The record is remembered in the memory tier too, for a
restore while the store is away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.store.generations import MAX_CLAIMS, Generations, read_generations
from torchloom.checkpoint.store.manifest import seal, unseal
from torchloom.checkpoint.store.names import FILE, Branch, branch_key, run_key
from torchloom.checkpoint.store.points import at
from torchloom.checkpoint.store.storage import Storage
from torchloom.errors import (
    CheckpointDamaged,
    CheckpointExists,
    CheckpointFenced,
    CheckpointMissing,
    RunTakenOver,
    UsageError,
)
from torchloom.private import make_private, why_not_private


@dataclass(frozen=True, slots=True)
class Begun:
    """Generation `generation` of the run is number `number` in the store."""

    generation: int
    number: int

    def number_of(self, generation: int) -> int:
        return self.number + generation - self.generation


def run_of(env: Mapping[str, str]) -> str:
    """Which submission this process belongs to; empty if unknown."""
    text = env.get("LOOM_RUN", "")
    return text if FILE.fullmatch(text) else ""


def number_in_store(storage: Storage, job: str, run: str, generation: int) -> Begun:
    """What the store calls a generation of this run, given out if the run is new there."""
    key = run_key(job, run)
    damaged = False
    try:
        return _recorded(storage, job, run)
    except CheckpointMissing:
        pass
    except CheckpointDamaged:
        damaged = True
        begun = _by_fences(storage, job, run)
        if begun is not None:
            storage.put(key, [_record(begun)])
            return begun
    first = max(read_generations(storage, job).newest + 1, generation)
    for candidate in range(first, first + MAX_CLAIMS):
        # The fence itself is what two runs at once cannot both create.
        if storage.put_new(branch_key(job, Branch(candidate)), _fence(run, candidate, generation)):
            break
    else:
        raise CheckpointExists(f"{MAX_CLAIMS} other runs of {job} took every generation tried")
    at("run.claimed")
    record = _record(Begun(generation, candidate))
    if damaged:
        storage.put(key, [record])  # a number above all others is safe, whatever the old one was
    else:
        storage.put_new(key, record)
    at("run.recorded")
    return _recorded(storage, job, run)


def begin_run(storage: Storage, job: str, run: str, number: int, known: Generations | None = None) -> None:
    """Register a number of this run, before anything is read or committed under it; repeating it is fine.

    `known` are the records if the caller has read them already. Raises CheckpointFenced if another run, or a
    later life of this one, has begun since.
    """
    known = known or read_generations(storage, job)
    numbers = {branch.generation for branch in known.begun}
    if known.newest > number:
        if not _is_own(storage, job, run, known.newest):
            raise _refusal(job, run, known.newest)
        raise CheckpointFenced(
            f"generation {number} of {job} may no longer save, because generation {known.newest} has begun"
        )
    if number not in numbers:
        _create_up_to(storage, job, run, number, numbers)
    elif not _is_own(storage, job, run, number):
        raise _refusal(job, run, number)
    at("fence.registered")


def _create_up_to(storage: Storage, job: str, run: str, number: int, numbers: set[int]) -> None:
    """Create the missing numbers between the newest that this run owns and this one, the lowest first."""
    try:
        begun = _recorded(storage, job, run)
    except (CheckpointMissing, CheckpointDamaged):
        begun = Begun(number, number)
    missing = []
    for each in range(number, begun.number - 1, -1):
        if each not in numbers:
            missing.append(each)
        elif _is_own(storage, job, run, each):
            break  # the life that created it owned all before it
        else:
            raise _refusal(job, run, each)
    for each in reversed(missing):
        life = begun.generation + each - begun.number
        created = storage.put_new(branch_key(job, Branch(each)), _fence(run, each, life))
        if not created and not _is_own(storage, job, run, each):
            raise _refusal(job, run, each)


def _is_own(storage: Storage, job: str, run: str, number: int) -> bool:
    """Whether a fence is this run's. One of an older torchloom names nobody and counts as its own."""
    key = branch_key(job, Branch(number))
    try:
        record = unseal(storage.get(key), key)
    except CheckpointMissing:  # the store was just deleted: it belongs to no run
        return True
    except CheckpointDamaged:
        return not _has_successor(storage, job, run, number)
    owner = record.get("run", record.get("by", run))
    if not isinstance(owner, str):
        return not _has_successor(storage, job, run, number)
    return owner == run


def _has_successor(storage: Storage, job: str, run: str, number: int) -> bool:
    """Whether another run began after this one, by what the runs recorded: for a fence that is damaged."""
    prefix = run_key(job, run).removesuffix(run)
    firsts: dict[str, int] = {}
    for stored in storage.list(prefix):
        other = stored.key.removeprefix(prefix)
        with suppress(CheckpointDamaged, CheckpointMissing, UsageError):
            firsts[other] = _recorded(storage, job, other).number
    mine = firsts.pop(run, number)
    return any(first > mine for first in firsts.values())


def _by_fences(storage: Storage, job: str, run: str) -> Begun | None:
    """What a damaged record of a run said, from a fence that the run created."""
    for branch in sorted(read_generations(storage, job).begun):
        key = branch_key(job, Branch(branch.generation))
        with suppress(CheckpointDamaged, CheckpointMissing, KeyError, TypeError, ValueError):
            record = unseal(storage.get(key), key)
            if record.get("run") == run:
                return Begun(int(record["life"]), branch.generation)
    return None


def _refusal(job: str, run: str, number: int) -> RunTakenOver:
    return RunTakenOver(
        f"another run of {job} has taken over: it began generation {number} in this checkpoint store, "
        f"so run {run} may neither resume nor save there",
        hint="stop one of the two, or give one another name or CHECKPOINT_DIR; submit it again to take over",
    )


def _fence(run: str, number: int, life: int) -> bytes:
    """`life`: what the control service calls this generation."""
    return seal({"generation": number, "run": run, "life": life})


def _record(begun: Begun) -> bytes:
    return seal({"generation": begun.generation, "number": begun.number})


def _recorded(storage: Storage, job: str, run: str) -> Begun:
    """Raises CheckpointMissing or CheckpointDamaged."""
    key = run_key(job, run)
    try:
        return _begun(unseal(storage.get(key), key))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointDamaged(f"{key} is damaged ({type(error).__name__})") from error


def _begun(record: Mapping[str, int]) -> Begun:
    return Begun(int(record["generation"]), int(record["number"]))


# -- beside the states in memory --------------------------------------------------------------------------


def remember(folder: Path | None, run: str, begun: Begun) -> None:
    """For when the store is away. A note that cannot be written is a note less."""
    if folder is not None:
        with suppress(OSError):
            make_private(folder)
            note = {"run": run, "generation": begun.generation, "number": begun.number}
            tier.numbers(folder).write_text(json.dumps(note))


def recall(folder: Path | None, run: str) -> Begun | None:
    with suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        if folder is not None and not why_not_private(folder):
            note = json.loads(tier.numbers(folder).read_text())
            if note["run"] == run:
                return _begun(note)
    return None
