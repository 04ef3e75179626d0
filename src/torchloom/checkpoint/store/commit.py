"""Writing a checkpoint so that it exists whole or not at all, and only if its generation still counts.

Owns the order of writes:

 1. `begin(G)` registers the generation before anything is read (generations.py).
 2. Having found and loaded a state, `settle(G, choice)` records once what G resumed from.
 3. Every rank writes its files (`PartWriter.add`), under keys that no other process ever uses, and then its
    part: the list of them with sizes and checksums.
 4. One rank, or any that is last, gathers the parts and commits: is no newer generation registered? are all
    files there? then create-only put of `manifest.json`. **That one put is the commit.**
 5. `LATEST` is replaced: a hint for people that no code reads; its failure does not matter.

Why a reader sees all or nothing. A checkpoint without manifest does not exist. The manifest appears whole (or
is refused by its seal), after every file it lists was durable, and is never replaced (create-only). The files
it lists are never written again: every key holds a random token made for that one write. So a kill, a failed,
late or doubled write at any place leaves unlisted files, which the sweep removes, and nothing else.

Why a late writer of an old generation never wins, even if it was frozen between the check of step 4 and its
put. The check is a courtesy: it saves work and gives a clear error. Safety does not rest on it, because no
store can test one key and write another in one step. It rests on what readers do. Let generation H begin
after G, and let G's late manifest appear at any time.
  * It cannot replace anything: its key holds G.
  * Before H has settled, H's search may see it or not. Either is right: it is a whole state of the job, and H
    settles on one answer for all its ranks by a create-only record.
  * After H has settled on checkpoint c, a reader starts at the newest settled generation and walks down the
    choices (`line_of_descent`). It meets H's own checkpoints, then c, then what c descends from. G's late one
    is a later step of a branch that H left at c (or of a generation that H's line does not pass through), so
    it is on no such walk, now or later: choices are never changed, and later generations choose from the
    walk. It stays in the catalogue, not resumable, until the keep rules remove it.
  * If it is an earlier step of c's own generation it is on the walk, below c: a true ancestor, only late.
For the same reason a rollback to an older step stays in force even if the new generation dies before its
first save. A live rollback is the same within a generation: it begins a branch with a higher number, and all
that is said above of G and H holds of two branches, whose order is that of (generation, branch). Only the
fence is the generation's alone, because one set of processes writes all its branches, one after another.
What this asks of the caller: one number per life of the process group (the weaver gives it out, or `claim`
does; a number that two runs of one name would both take belongs to the one that created its fence, runs.py),
begin before searching, settle before training. `commit` settles by the parent it is given if the caller has
not.

Why an unknown outcome is harmless. A put that raised may have happened, or happen later. Repeating the commit
finds the same content and returns; a late duplicate of a file rewrites the same bytes under its own key.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from torchloom.checkpoint.store.generations import begin, check_fence, read_generations, settle
from torchloom.checkpoint.store.manifest import (
    Facts,
    FileEntry,
    Manifest,
    RankPart,
    decode_manifest,
    decode_part,
    encode_manifest,
    encode_part,
)
from torchloom.checkpoint.store.names import (
    Branch,
    CheckpointName,
    check_job,
    directory,
    file_key,
    latest_key,
    manifest_key,
    parse_name,
    part_key,
    stored_name,
)
from torchloom.checkpoint.store.points import at
from torchloom.checkpoint.store.runs import begin_run
from torchloom.checkpoint.store.storage import Bytes, Storage
from torchloom.checkpoint.store.verify import Checksum, check_sizes, summed
from torchloom.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointExists,
    CheckpointMissing,
    UsageError,
)

_TOKEN_BYTES = 6


@dataclass(frozen=True, slots=True)
class Target:
    """One attempt to save one state; the same on every rank."""

    job: str
    name: CheckpointName
    world: int
    attempt: int
    """Counts the saves of this generation, failed ones too, so that parts of two attempts never mix."""
    run: str = ""
    """The submission whose generation this is; empty if unknown (runs.py)."""
    series: str = ""
    """Whose saves `attempt` counts: a process group may save one step twice, each time counting from 1."""

    def __post_init__(self) -> None:
        check_job(self.job)
        if self.world < 1 or self.attempt < 0 or min(self.name) < 0:
            raise UsageError(f"{self} is not valid: counts begin at 0, a world has at least one rank")


class PartWriter:
    """What one rank writes for a checkpoint."""

    def __init__(self, storage: Storage, target: Target, rank: int) -> None:
        self._storage = storage
        self._target = target
        self._rank = rank
        self._files: dict[str, FileEntry] = {}
        self._started: list[str] = []

    def add(self, name: str, chunks: Iterable[Bytes]) -> FileEntry:
        """Write a file from memory; durable when this returns."""
        if name in self._files:
            raise UsageError(f"rank {self._rank} writes {name!r} twice into one checkpoint")
        target = self._target
        # A new key for every try: a failed one may still arrive late, and must not meet a listed file.
        stored = stored_name(self._rank, target.attempt, secrets.token_hex(_TOKEN_BYTES), name)
        total = Checksum()
        self._started.append(stored)
        self._storage.put(file_key(target.job, target.name, stored), summed(chunks, total))
        entry = FileEntry(name, self._rank, stored, total.size, total.value)
        self._files[name] = entry
        at("commit.file")
        return entry

    def finish(self) -> RankPart:
        """Write the list of what this rank wrote, for the rank that gathers."""
        target = self._target
        files = tuple(self._files.values())
        part = RankPart(target.name, target.attempt, self._rank, files, target.series)
        if target.world > 1:
            key = part_key(target.job, target.name, self._rank, target.attempt)
            self._storage.put(key, [encode_part(part)])
        at("commit.part")
        return part

    def abandon(self) -> None:
        """Remove what was written, as far as the store lets us; the sweep takes the rest.

        Only before `commit` was tried: one whose outcome is unknown may yet appear.
        """
        target = self._target
        with suppress(CheckpointError):
            self._storage.delete(part_key(target.job, target.name, self._rank, target.attempt))
            for stored in self._started:
                self._storage.delete(file_key(target.job, target.name, stored))


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint that exists from now on."""

    manifest: Manifest
    warning: str = ""
    """The hint could not be written; nothing depends on it."""
    renewed: bool = False
    """The generation's own record was not there and had to be made again."""


def gather(storage: Storage, target: Target) -> list[RankPart]:
    """The parts of all ranks. Raises CheckpointError while some are missing."""
    parts: list[RankPart] = []
    missing: list[int] = []
    for rank in range(target.world):
        key = part_key(target.job, target.name, rank, target.attempt)
        try:
            part = decode_part(storage.get(key), key)
        except CheckpointMissing:
            missing.append(rank)
            continue
        if (part.name, part.attempt, part.rank) != (target.name, target.attempt, rank):
            raise CheckpointDamaged(f"{key} is the part of another rank or attempt")
        if part.series != target.series:  # left by an earlier save of this step; the right one replaces it
            missing.append(rank)
            continue
        parts.append(part)
    if missing:
        ranks = ", ".join(map(str, missing))
        raise CheckpointError(f"{target.name} is not complete: no part of rank {ranks}")
    at("commit.gathered")
    return parts


def commit(
    storage: Storage,
    target: Target,
    parts: Iterable[RankPart],
    facts: Facts,
    now_s: float,
    owed: Mapping[Branch, CheckpointName | None] | None = None,
) -> Committed:
    """Make the checkpoint exist. When this raises, repeating it with the same parts is safe.

    `owed` are the choices that its line passes through, its own too, and the store may not know: it was away
    when they were made, or somebody has deleted them since.
    Raises CheckpointFenced if a newer generation has begun, CheckpointExists if the step was already
    committed with other files, CheckpointDamaged if a file is not there, StorageFailed if the store
    refuses.
    """
    files = tuple(entry for part in sorted(parts, key=lambda part: part.rank) for entry in part.files)
    job, name = target.job, target.name
    manifest = Manifest(
        job=job,
        step=name.step,
        generation=name.generation,
        branch=name.branch,
        world=target.world,
        created_s=now_s,
        facts=facts,
        files=files,
    )
    data = encode_manifest(manifest)
    renewed = _allow(storage, target, facts.parent, owed or {})
    prefix = f"{directory(job, name)}/"
    check_sizes(manifest, {stored.key: stored.size for stored in storage.list(prefix)})
    at("commit.checked")
    key = manifest_key(job, name)
    if not storage.put_new(key, data):
        existing = decode_manifest(storage.get(key), job, name)
        if existing.content != manifest.content:
            raise CheckpointExists(f"{name} of {job} was already committed with other files")
        manifest = existing
    at("commit.done")
    try:
        storage.put(latest_key(job), [f"{name}\n".encode()])
    except CheckpointError as error:
        return Committed(manifest, str(error), renewed)
    at("commit.hinted")
    return Committed(manifest, renewed=renewed)


def _allow(
    storage: Storage, target: Target, parent: str, owed: Mapping[Branch, CheckpointName | None]
) -> bool:
    """Refuse an older generation; make sure that ours has begun and made its choice. Whether it had not begun
    as far as the store knows: then somebody has deleted what was there, or it was away until now."""
    branch = target.name.on
    generations = read_generations(storage, target.job)
    if target.run:
        begin_run(storage, target.job, target.run, branch.generation, generations)
    else:
        check_fence(generations, target.job, branch.generation)
    renewed = Branch(branch.generation) not in generations.begun
    if renewed and not target.run:
        begin(storage, target.job, branch.generation)
    for earlier, choice in owed.items():
        if earlier not in generations.chosen:
            settle(storage, target.job, earlier, choice)
    if branch not in generations.chosen and branch not in owed:
        origin = parse_name(parent)
        if origin is not None and origin.on >= branch:
            raise CheckpointExists(f"generation {branch} of {target.job} has lost its choice of a parent")
        settle(storage, target.job, branch, origin)
    at("commit.allowed")
    return renewed
