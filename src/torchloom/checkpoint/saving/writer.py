"""Writing a staged state to the store, beside the training.

Owns the thread of a save; it lives as long as the save takes. It works on memory that the
loop does not touch meanwhile and releases the GIL for all that is long (checksums, reads and writes of
large blocks). It talks only to the store, so it can neither disturb nor be disturbed by the
job's collectives. A failed save leaves nothing visible and is reported, and training continues.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from torchloom.checkpoint.state.threads import BriefPause, beside
from torchloom.checkpoint.store import catalogue
from torchloom.checkpoint.store.commit import PartWriter, Target, commit, gather
from torchloom.checkpoint.store.manifest import Facts, RankPart
from torchloom.checkpoint.store.names import Branch, CheckpointName, manifest_key
from torchloom.checkpoint.store.storage import Storage
from torchloom.checkpoint.store.verify import CHUNK
from torchloom.core.retention import KeepRules
from torchloom.errors import CheckpointDamaged, CheckpointError, CheckpointFenced, StorageFailed, StorageFull

T = TypeVar("T")

PEERS_WITHIN_S = 600.0
"""How long the parts of other ranks are waited for. A dead rank ends the job long before."""
PEER_FAILED = "another rank could not write its part"
"""That rank reports why."""


@dataclass(frozen=True)
class Save:
    """One state on its way to the store."""

    target: Target
    rank: int
    files: Mapping[str, memoryview]
    facts: Facts
    keep: KeepRules | None
    commits: bool
    """Does this rank gather and commit?"""
    owed: Mapping[Branch, CheckpointName | None] = field(default_factory=dict)
    """Choices that the store must know, should it not have them."""


@dataclass(frozen=True)
class SaveOutcome:
    """How a save ended."""

    save: Save
    took_s: float
    cpu_s: float
    problem: str = ""
    fenced: bool = False
    warning: str = ""
    size: int = 0
    """Bytes of the whole checkpoint, as the one who commits knows."""
    renewed: bool = False
    """The store held nothing of this generation: not yet, or no longer."""


class Writer:
    """At most one save at a time."""

    def __init__(self, storage: Storage, has_failed: Callable[[int], bool]) -> None:
        """`has_failed(attempt)`: has another rank given this attempt up?"""
        self._storage = storage
        self._has_failed = has_failed
        self._thread: threading.Thread | None = None
        self._outcome: SaveOutcome | None = None
        self._leaving = threading.Event()
        self._swept = False
        self._moved_s = 0.0
        self._delivered = False
        self._pause = BriefPause()

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def save(self) -> Save | None:
        """The one being written."""
        return self._outcome.save if self.busy and self._outcome is not None else None

    @property
    def delivered(self) -> bool:
        """The state in flight is in the store; only small writes are left of this rank's save."""
        return self.busy and self._delivered

    @property
    def stalled_s(self) -> float:
        """For how long the save in flight has not moved: no block written, no answer of the store."""
        return time.monotonic() - self._moved_s if self.busy else 0.0

    def start(
        self, save: Save, first: Callable[[], None] | None = None, pause: BriefPause | None = None
    ) -> None:
        """`first` is done before, on the same thread, after the pause."""
        assert not self.busy, "one save at a time"
        self._moved_s = time.monotonic()
        self._delivered = False
        self._outcome = SaveOutcome(save, 0.0, 0.0, problem="it ended without a word")
        self._pause = pause or BriefPause()
        self._thread = beside(lambda: self._run(save, first), "loom-checkpoint", self._pause)
        if self._thread is None:
            self._outcome = SaveOutcome(save, 0.0, 0.0, problem="this process cannot start more threads")
            if first is not None:
                first()

    def collect(self) -> SaveOutcome | None:
        """How the last save ended, once."""
        if self.busy:
            return None
        self.wait()
        outcome, self._thread, self._outcome = self._outcome, None, None
        return outcome

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the save in flight; False if it is still not done."""
        self._pause.end()
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.busy

    def wait_moving(
        self, within_s: float, stalled_s: float, meanwhile: Callable[[], None] | None = None
    ) -> bool:
        """Wait for the save in flight while it moves; False if it is still not done. `meanwhile` is called a
        few times a second."""
        end = time.monotonic() + within_s
        while self.busy and time.monotonic() < end and self.stalled_s < stalled_s:
            self.wait(min(0.1, stalled_s))
            if meanwhile is not None:
                meanwhile()
        return not self.busy

    def give_up_peers(self) -> None:
        """Do not wait for other ranks: this process has failed, and they have or soon will."""
        self._leaving.set()

    def _run(self, save: Save, first: Callable[[], None] | None) -> None:
        if first is not None:
            first()
        began, cpu = time.perf_counter(), time.thread_time()
        problem, warning, fenced, size, renewed = "", "", False, 0, False
        try:
            warning, size, renewed = self._write(save)
        except CheckpointFenced as error:
            problem, fenced = str(error), True
        except CheckpointError as error:
            problem = str(error)
        except (OSError, MemoryError) as error:
            problem = f"{type(error).__name__}: {error}"
        self._outcome = SaveOutcome(
            save,
            time.perf_counter() - began,
            time.thread_time() - cpu,
            problem,
            fenced,
            warning,
            size,
            renewed,
        )

    def _write(self, save: Save) -> tuple[str, int, bool]:
        """(a warning, bytes of the whole checkpoint, had the store lost the generation)."""
        writer = PartWriter(self._storage, save.target, save.rank)
        tried = False
        try:
            for name, data in save.files.items():
                self._with_room(save, partial(self._add, writer, name, data))
            self._delivered = not save.commits
            part = self._with_room(save, writer.finish)
            if not save.commits:
                return "", 0, False
            parts = self._parts(save, part)
            tried = True
            target, facts, owed = save.target, save.facts, save.owed
            done = self._with_room(
                save, lambda: commit(self._storage, target, parts, facts, time.time(), owed)
            )
        except CheckpointError as error:
            self._swept = False  # something may be left of it
            if not tried or (isinstance(error, StorageFull) and self._is_uncommitted(save)):
                writer.abandon()  # otherwise: a commit whose outcome is unknown may yet appear
            raise
        warning = done.warning
        if save.keep is not None or not self._swept:
            try:
                if save.keep is not None:
                    catalogue.keep(self._storage, save.target.job, save.keep)
                if not self._swept:  # what earlier lives of the job left; once is enough
                    self._swept = True
                    catalogue.sweep(self._storage, save.target.job, time.time())
            except CheckpointError as error:
                warning = f"old checkpoints could not be removed: {error}"
        return warning, done.manifest.size, done.renewed

    def _add(self, writer: PartWriter, name: str, data: memoryview) -> None:
        writer.add(name, self._moving(data))

    def _with_room(self, save: Save, write: Callable[[], T]) -> T:
        """Write; if the store is full, make room as far as the keep rules allow, and once more."""
        try:
            return write()
        except StorageFull:
            catalogue.make_room(self._storage, save.target.job, save.target.name, save.keep)
            return write()

    def _is_uncommitted(self, save: Save) -> bool:
        try:
            return self._storage.size(manifest_key(save.target.job, save.target.name)) is None
        except CheckpointError:
            return False

    def _moving(self, data: memoryview) -> Iterator[memoryview]:
        """The bytes in blocks, each of which is a sign of life."""
        for start in range(0, len(data), CHUNK):
            self._moved_s = time.monotonic()
            yield data[start : start + CHUNK]
        self._moved_s = time.monotonic()

    def _parts(self, save: Save, mine: RankPart) -> list[RankPart]:
        """Everybody's parts, as they come."""
        if save.target.world == 1:
            return [mine]
        end = time.monotonic() + PEERS_WITHIN_S
        pause_s = 0.005
        self._moved_s = time.monotonic()
        while True:
            try:
                return gather(self._storage, save.target)
            except (StorageFailed, CheckpointDamaged):
                raise
            except CheckpointError as error:
                self._moved_s = time.monotonic()  # the store has answered: it is a peer that is slow
                if self._leaving.is_set():
                    raise
                if self._has_failed(save.target.attempt):
                    raise CheckpointError(PEER_FAILED) from error
                if time.monotonic() > end:
                    raise
            time.sleep(pause_s)
            pause_s = min(0.5, pause_s * 1.5)
