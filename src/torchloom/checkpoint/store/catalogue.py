"""The catalogue of a job's checkpoints: list, verify, pin, delete, keep rules, sweep.

Owns what people and the control plane do with checkpoints after they were saved. Chooses nothing about
keeping: that is core/retention.py. Deleting takes the manifest first, so that a half deleted checkpoint
does not exist; what is left of it is swept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from torchloom.checkpoint.store.manifest import Manifest, decode_manifest, seal
from torchloom.checkpoint.store.names import (
    MANIFEST,
    TEMPORARY,
    Branch,
    CheckpointName,
    check_key,
    directory,
    file_key,
    manifest_key,
    parse_name,
    pin_key,
)
from torchloom.checkpoint.store.points import at
from torchloom.checkpoint.store.reader import Listing, candidates_of, look
from torchloom.checkpoint.store.storage import Storage
from torchloom.checkpoint.store.verify import verify
from torchloom.core.retention import Candidate, KeepRules, KeepVerdict, judge
from torchloom.errors import (
    CheckpointDamaged,
    CheckpointInUse,
    CheckpointMissing,
    StorageFailed,
    StoreUnreachable,
)

SWEEP_GRACE_S = 3600.0
"""Leftovers younger than this may belong to a save that is still being written."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One line of the catalogue."""

    name: str
    step: int
    generation: int
    branch: int
    """Counts the live rollbacks of its generation before it was saved."""
    where: str
    whole: bool
    """All files are there with their sizes, and none was found damaged."""
    why: str
    """Why it is not whole; empty if it is."""
    verified_s: float | None
    """When its checksums were last compared and right."""
    pinned: bool
    resumable: bool
    """On the line of states a restart chooses from; False: a branch that was left."""
    newest: bool
    """A restart would take this one."""
    created_s: float
    size: int
    world: int
    epoch: int
    config_version: int
    parent: str
    finite: bool
    """False: its numbers were known not to be finite."""
    metrics: Mapping[str, float]
    lineage: Mapping[str, str]


def list_checkpoints(storage: Storage, job: str) -> list[CatalogueEntry]:
    """Everything committed, newest generation, branch and step first."""
    return _entries(look(storage, job))


def verify_checkpoint(storage: Storage, job: str, name: str, now_s: float) -> str:
    """Compare all checksums and note the outcome; why it is damaged, or nothing if it is right.

    A read-only store keeps no note; the answer is the same.
    """
    listing, parsed = _known(storage, job, name)
    why = ""
    try:
        verify(storage, listing.manifest(parsed))
    except CheckpointDamaged as error:
        why = error.message
    with suppress(StorageFailed):
        _note(storage, job, parsed, not why, why, now_s)
    return why


def mark_damaged(storage: Storage, job: str, name: str, why: str, now_s: float) -> None:
    """Let no search choose it again until a verification finds it right."""
    parsed = _parse(name)
    _note(storage, job, parsed, False, why, now_s)


def pin(storage: Storage, job: str, name: str) -> None:
    """Keep it whatever the rules say."""
    _, parsed = _known(storage, job, name)
    storage.put(pin_key(job, parsed), [b"pinned\n"])


def unpin(storage: Storage, job: str, name: str) -> None:
    storage.delete(pin_key(job, _parse(name)))


def delete(storage: Storage, job: str, name: str) -> None:
    """Remove a checkpoint. Raises CheckpointInUse if it is pinned or the one a restart would take."""
    listing, parsed = _known(storage, job, name)
    if listing.pinned(parsed):
        raise CheckpointInUse(f"{name} of {job} is pinned", hint="unpin it first")
    if any(entry.newest and entry.name == name for entry in _entries(listing)):
        raise CheckpointInUse(f"{name} is what {job} would resume from", hint="delete the job instead")
    _delete(listing, parsed)


def keep(
    storage: Storage,
    job: str,
    rules: KeepRules,
    in_use: Collection[str] = (),
    approve: Callable[[list[KeepVerdict]], bool] = lambda verdicts: True,
) -> list[KeepVerdict]:
    """Apply keep rules; returns what was decided. `approve` sees it before anything is deleted."""
    listing = look(storage, job)
    used = {*in_use, *(str(name) for name in [_resumed_from(listing)] if name is not None)}
    verdicts = judge([_candidate(entry) for entry in _entries(listing, strict=True)], rules, used)
    if approve(verdicts):
        for verdict in verdicts:
            if not verdict.keep:
                _delete(listing, _parse(verdict.name))
    return verdicts


def sweep(storage: Storage, job: str, now_s: float, grace_s: float = SWEEP_GRACE_S) -> list[str]:
    """Remove what no checkpoint consists of; the keys removed.

    Goes: temporary files, what a manifest does not list, and directories without manifest that are of an
    older branch or of an earlier step than one committed since; all only if older than the grace.
    Should a frozen writer commit to such a directory after all, its manifest lists files that are gone and
    is rejected.
    """
    listing = look(storage, job)
    # A branch that made no choice may be one that was never taken.
    newest = max(Branch(listing.generations.newest), *listing.generations.chosen)
    done = max((name.step for name in listing.committed if name.on == newest), default=-1)
    listed: dict[CheckpointName, set[str] | None] = {}
    removed: list[str] = []
    for stored in listing.objects:
        if stored.modified_s > now_s - grace_s:
            continue
        pieces = stored.key.split("/")
        name = parse_name(pieces[1])
        if pieces[-1].startswith(TEMPORARY) or pieces[1].startswith("probe-"):
            useless = True
        elif name is None or pieces[-1] == MANIFEST:
            useless = False
        elif name in listing.committed:
            if name not in listed:
                listed[name] = _listed(listing, name)
            keys = listed[name]
            useless = keys is not None and stored.key not in keys
        else:
            useless = name.on < newest or (name.on == newest and name.step < done)
        if useless:
            storage.delete(stored.key)
            removed.append(stored.key)
            at("sweep.removed")
    return removed


def make_room(storage: Storage, job: str, saving: CheckpointName, rules: KeepRules | None) -> None:
    """The store is full: remove what earlier saves of this branch left that were never committed, and what
    the keep rules would remove once this one is. The newest whole checkpoint always stays.
    """
    listing = look(storage, job)
    committed = set(listing.committed)
    for stored in listing.objects:
        name = parse_name(stored.key.split("/")[1])
        # A rank that writes a later step has given up the earlier one, so nobody will commit it.
        if name is not None and name.on == saving.on and name.step < saving.step and name not in committed:
            storage.delete(stored.key)
    if rules is not None and rules.last is not None:
        keep(storage, job, replace(rules, last=max(1, rules.last - 1)))


def purge(storage: Storage, job: str) -> None:
    """Remove everything a job has in the store, pinned or not; manifests first."""
    listing = look(storage, job)
    for name in listing.committed:
        storage.delete(manifest_key(job, name))
    for stored in listing.objects:
        storage.delete(stored.key)


def _entries(listing: Listing, strict: bool = False) -> list[CatalogueEntry]:
    """`strict`: what cannot be read now raises instead of counting as damaged, for it may be whole."""
    line = candidates_of(listing, None)
    resumable = set(line)
    judged = {name: _judged(listing, name, strict) for name in listing.committed}
    newest = next((name for name in line if not judged[name][1]), None)
    entries: list[CatalogueEntry] = []
    for name in listing.committed:
        manifest, why, verified_s = judged[name]
        facts = manifest.facts if manifest else None
        entries.append(
            CatalogueEntry(
                name=str(name),
                step=name.step,
                generation=name.generation,
                branch=name.branch,
                where=f"{listing.storage.where}/{directory(listing.job, name)}",
                whole=not why,
                why=why,
                verified_s=verified_s,
                pinned=listing.pinned(name),
                resumable=name in resumable,
                newest=name == newest,
                created_s=manifest.created_s if manifest else 0.0,
                size=manifest.size if manifest else 0,
                world=manifest.world if manifest else 0,
                epoch=facts.epoch if facts else 0,
                config_version=facts.config_version if facts else 0,
                parent=facts.parent if facts else "",
                finite=facts.finite if facts else True,
                metrics=facts.metrics if facts else {},
                lineage=facts.lineage if facts else {},
            )
        )
    return entries


def _judged(
    listing: Listing, name: CheckpointName, strict: bool
) -> tuple[Manifest | None, str, float | None]:
    """(manifest, why it is not whole, when it was verified)."""
    try:
        manifest = listing.manifest(name)
    except (CheckpointDamaged, CheckpointMissing, StorageFailed) as error:
        if isinstance(error, StoreUnreachable) or (strict and isinstance(error, StorageFailed)):
            raise
        return None, error.message, None
    check = listing.check(name)
    if check is None:
        return manifest, "", None
    right, at_s, why = check
    return manifest, "" if right else why, at_s if right else None


def _candidate(entry: CatalogueEntry) -> Candidate:
    return Candidate(
        name=entry.name,
        generation=entry.generation,
        branch=entry.branch,
        step=entry.step,
        whole=entry.whole,
        resumable=entry.resumable,
        pinned=entry.pinned,
        finite=entry.finite,
        metrics=entry.metrics,
    )


def _resumed_from(listing: Listing) -> CheckpointName | None:
    """What the newest generation resumed from: it may still be reading it."""
    return listing.generations.chosen.get(max(listing.generations.chosen, default=Branch(-1)))


def _listed(listing: Listing, name: CheckpointName) -> set[str] | None:
    """The keys a checkpoint consists of, or None if its manifest does not say."""
    try:
        data = listing.storage.get(manifest_key(listing.job, name))
        manifest = decode_manifest(data, listing.job, name)
    except (CheckpointDamaged, CheckpointMissing):
        return None
    return {file_key(listing.job, name, entry.stored) for entry in manifest.files}


def _delete(listing: Listing, name: CheckpointName) -> None:
    storage, job = listing.storage, listing.job
    storage.delete(manifest_key(job, name))
    at("delete.manifest")
    prefix = f"{directory(job, name)}/"
    for stored in listing.objects:
        if stored.key.startswith(prefix):
            storage.delete(stored.key)
            at("delete.file")
    storage.delete(check_key(job, name))


def _note(storage: Storage, job: str, name: CheckpointName, right: bool, why: str, now_s: float) -> None:
    storage.put(check_key(job, name), [seal({"right": right, "why": why, "at_s": now_s})])


def _known(storage: Storage, job: str, name: str) -> tuple[Listing, CheckpointName]:
    parsed = _parse(name)
    listing = look(storage, job)
    if parsed not in listing.committed:
        raise CheckpointMissing(f"{job} has no checkpoint {name}")
    return listing, parsed


def _parse(name: str) -> CheckpointName:
    parsed = parse_name(name)
    if parsed is None:
        raise CheckpointMissing(f"{name!r} is not a checkpoint's name", hint="use a name as listed")
    return parsed
