"""Finding the state to resume from.

Owns the one listing that everything is judged by, and the search for the newest checkpoint that is whole.
Does not load it: files are compared with their checksums when they are loaded (verify.py). A checkpoint
that turns out damaged then is marked (catalogue.mark_damaged) or skipped, and the search repeated.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from torchloom.checkpoint.store.generations import Generations, line_of_descent, read_generations
from torchloom.checkpoint.store.manifest import Manifest, decode_manifest, unseal
from torchloom.checkpoint.store.names import (
    MANIFEST,
    Branch,
    CheckpointName,
    check_job,
    check_key,
    manifest_key,
    parse_name,
    pin_key,
)
from torchloom.checkpoint.store.storage import Storage, Stored
from torchloom.checkpoint.store.verify import check_sizes
from torchloom.errors import CheckpointDamaged, CheckpointMissing


@dataclass(frozen=True, slots=True)
class Rejected:
    """A checkpoint that cannot be used, and why, in a sentence for the incident."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Search:
    """What a search found, and what it passed over on the way."""

    found: Manifest | None
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything a job has in the store, as one listing showed it."""

    storage: Storage
    job: str
    objects: tuple[Stored, ...]
    sizes: dict[str, int]
    generations: Generations
    committed: tuple[CheckpointName, ...]
    """All that have a manifest, whole or not, newest generation, branch and step first."""

    def manifest(self, name: CheckpointName) -> Manifest:
        """The manifest if it and all files are there. Raises CheckpointDamaged or CheckpointMissing."""
        manifest = decode_manifest(self.storage.get(manifest_key(self.job, name)), self.job, name)
        check_sizes(manifest, self.sizes)
        return manifest

    def check(self, name: CheckpointName) -> tuple[bool, float, str] | None:
        """(was it right, when, why not) of the last verification; None if there was none."""
        key = check_key(self.job, name)
        if key not in self.sizes:
            return None
        try:
            body = unseal(self.storage.get(key), key)
            right, at_s, why = body["right"], float(body["at_s"]), body["why"]
        except (CheckpointDamaged, CheckpointMissing, KeyError, TypeError, ValueError, OverflowError):
            return None
        whole = isinstance(right, bool) and isinstance(why, str) and math.isfinite(at_s) and at_s >= 0
        return (right, at_s, why) if whole else None

    def pinned(self, name: CheckpointName) -> bool:
        return pin_key(self.job, name) in self.sizes

    def judge(self, name: CheckpointName) -> Manifest:
        """The manifest of a checkpoint that may be used. Raises CheckpointDamaged or CheckpointMissing."""
        check = self.check(name)
        if check is not None and not check[0]:
            raise CheckpointDamaged(f"{name} was found damaged before: {check[2]}")
        return self.manifest(name)


def look(storage: Storage, job: str) -> Listing:
    """List a job's part of the store."""
    objects = tuple(storage.list(f"{check_job(job)}/"))
    committed: list[CheckpointName] = []
    for stored in objects:
        pieces = stored.key.split("/")
        if len(pieces) == 3 and pieces[2] == MANIFEST and (name := parse_name(pieces[1])):
            committed.append(name)
    return Listing(
        storage=storage,
        job=job,
        objects=objects,
        sizes={stored.key: stored.size for stored in objects},
        generations=read_generations(
            storage,
            job,
            (stored.key for stored in objects),
            lambda branch: _origin(storage, job, branch, committed),
        ),
        committed=tuple(sorted(committed, key=lambda name: name.age, reverse=True)),
    )


def _origin(
    storage: Storage, job: str, branch: Branch, committed: Collection[CheckpointName]
) -> CheckpointName | None:
    """What a branch resumed from, according to its first state; KeyError if that is gone or unreadable."""
    first = min((name for name in committed if name.on == branch), key=lambda name: name.step, default=None)
    if first is None:
        raise KeyError(branch)
    try:
        parent = decode_manifest(storage.get(manifest_key(job, first)), job, first).facts.parent
    except (CheckpointDamaged, CheckpointMissing) as error:
        raise KeyError(branch) from error
    origin = parse_name(parent)
    if parent and (origin is None or origin.on >= branch):
        raise KeyError(branch)  # the states between are gone
    return origin


def find(
    storage: Storage,
    job: str,
    generation: int | None = None,
    step: int | None = None,
    skip: Collection[str] = (),
) -> Search:
    """The newest state a generation may resume from, or the newest of all if none is given.

    With `step`, that step and no other: from the line of descent if it is there, else from a branch that was
    left (an operator may want just that). `skip` names checkpoints that failed to load.
    """
    listing = look(storage, job)
    candidates = candidates_of(listing, generation)
    if step is not None:
        others = [name for name in listing.committed if name not in set(candidates)]
        candidates = [name for name in (*candidates, *others) if name.step == step]
    rejected: list[Rejected] = []
    for name in candidates:
        if str(name) in skip:
            continue
        try:
            return Search(listing.judge(name), tuple(rejected))
        except (CheckpointDamaged, CheckpointMissing) as error:
            rejected.append(Rejected(str(name), str(error)))
    return Search(None, tuple(rejected))


def candidates_of(listing: Listing, generation: int | None) -> list[CheckpointName]:
    """What a generation may resume from, best first; one that has settled sees its own line."""
    below = generation
    if generation is not None and listing.generations.has_settled(generation):
        below = generation + 1
    return line_of_descent(listing.committed, listing.generations, below)
