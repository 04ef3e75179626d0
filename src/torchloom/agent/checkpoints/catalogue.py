"""Looks after a job's checkpoints where they are: list, verify, pin, unpin, delete, purge, damage.

Every verb runs in a thread of its own, because a store may be slow and the agent's loop must not wait. Where
the store is and how to get in comes with the question; nothing of it is kept here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from dataclasses import replace

from torchloom.agent.checkpoints import trainer_catalogue
from torchloom.checkpoint.store import catalogue
from torchloom.checkpoint.store.catalogue import CatalogueEntry
from torchloom.checkpoint.store.damage import damage_newest
from torchloom.checkpoint.store.storage import Storage, open_storage
from torchloom.errors import CheckpointInUse, CheckpointMissing, LoomError, UsageError
from torchloom.model.checkpoints import CheckpointEntry
from torchloom.model.messages import AskCheckpoints, CheckpointAnswer, CheckpointProblem

log = logging.getLogger(__name__)

AT_ONCE = 2
"""Most verbs in progress at the same time: verifying reads all of a checkpoint."""
MOST_ENTRIES = 500
"""As many fit into one message; those beyond are the oldest."""


class CatalogueAnswers:
    """Answers questions about checkpoints."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def answer(self, ask: AskCheckpoints) -> CheckpointAnswer:
        async with self._slots:
            return await _beside(ask)


async def _beside(ask: AskCheckpoints) -> CheckpointAnswer:
    """In a daemon thread, because the agent's end must not wait for a store that does not answer."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[CheckpointAnswer] = loop.create_future()

    def settle(found: CheckpointAnswer) -> None:
        if not done.done():
            done.set_result(found)

    def run() -> None:
        found = CheckpointAnswer(problem="failed", why="the agent failed at it; see its log")
        try:
            found = answer(ask, time.time())
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=run, name=f"checkpoints of {ask.job}", daemon=True).start()
    return await done


def answer(ask: AskCheckpoints, now_s: float) -> CheckpointAnswer:
    """Do what is asked. A refusal is an answer too."""
    if ask.place.framework:
        return trainer_catalogue.answer(ask)
    try:
        storage = open_storage(ask.place.uri, ask.env)
        why = _do(storage, ask, now_s)
        entries = catalogue.list_checkpoints(storage, ask.place.name)
    except LoomError as error:
        return CheckpointAnswer(problem=_kind(error), why=str(error))
    if ask.which:
        entries = [entry for entry in entries if entry.name == ask.which]
    if ask.verb == "verify" and why:  # also where the store could not note it
        entries = [replace(entry, whole=False, why=why, verified_s=None) for entry in entries]
    shown = tuple(_entry(entry) for entry in entries[:MOST_ENTRIES])
    return CheckpointAnswer(entries=shown, why=why, left_out=len(entries) - len(shown))


def _do(storage: Storage, ask: AskCheckpoints, now_s: float) -> str:
    """Carry out the verb; what a verification found wrong, if it did."""
    job = ask.place.name
    match ask.verb:
        case "list":
            pass
        case "verify":
            return catalogue.verify_checkpoint(storage, job, ask.which, now_s)
        case "pin":
            catalogue.pin(storage, job, ask.which)
        case "unpin":
            catalogue.unpin(storage, job, ask.which)
        case "delete":
            catalogue.delete(storage, job, ask.which)
            log.info("checkpoint %s of %s was deleted", ask.which, ask.job)
        case "damage":
            key = damage_newest(storage, job, int(ask.which))
            if not key:
                raise CheckpointMissing(f"{ask.job} has no whole checkpoint to damage")
            log.warning("%s of %s was damaged on purpose", key, ask.job)
        case "purge":
            catalogue.purge(storage, job)
            log.info("all checkpoints of %s were deleted", ask.job)
    return ""


def _kind(error: LoomError) -> CheckpointProblem:
    if isinstance(error, CheckpointMissing):
        return "missing"
    if isinstance(error, CheckpointInUse):
        return "in-use"
    return "usage" if isinstance(error, UsageError) else "failed"


def _entry(entry: CatalogueEntry) -> CheckpointEntry:
    return CheckpointEntry(
        name=entry.name,
        step=entry.step,
        generation=entry.generation,
        where=entry.where,
        whole=entry.whole,
        why=entry.why,
        verified_ns=int((entry.verified_s or 0.0) * 1e9),
        pinned=entry.pinned,
        resumable=entry.resumable,
        newest=entry.newest,
        created_ns=int(entry.created_s * 1e9),
        size=entry.size,
        world=entry.world,
        epoch=entry.epoch,
        config_version=entry.config_version,
        parent=entry.parent,
        finite=entry.finite,
        metrics=dict(entry.metrics),
        lineage=dict(entry.lineage),
    )
