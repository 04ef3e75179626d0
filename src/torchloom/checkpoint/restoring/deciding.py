"""What rank 0 does for all ranks before a restore: register this life of the job, look, decide.

Owns the number of a life in the store, and the answer to an unreachable store: resume from memory if that
certainly is the newest state, else refuse in one sentence. Loads nothing and records no choice (restore.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

from torchloom.checkpoint.memory.hostline import Known
from torchloom.checkpoint.restoring.choosing import Choice, pick
from torchloom.checkpoint.store import runs
from torchloom.checkpoint.store.generations import Generations, begin, claim
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.checkpoint.store.reader import look
from torchloom.checkpoint.store.storage import Storage
from torchloom.errors import CheckpointError, CheckpointFenced, StorageFailed


class Decider:
    """Chooses what a life of a job resumes from."""

    def __init__(self, storage: Storage, job: str, run: str, folder: Path | None) -> None:
        """`folder`: the memory tier's, where numbers are remembered."""
        self._storage, self._job, self._run, self._folder = storage, job, run, folder
        self._number: int | None = None

    def choose(
        self,
        generation: int | None,
        step: int | None,
        common: Set[CheckpointName],
        known: Known,
        bad: Set[CheckpointName],
    ) -> Choice:
        """An error is part of the answer, because the other ranks wait for one.

        `common`: what all ranks have in memory; `known`: what their hosts know of the line; `bad`: what was
        tried in the store in vain.
        """
        number = self._expected(generation)
        try:
            number = self._begin(generation)
            listing = look(self._storage, self._job)
            recorded = listing.generations
            choice = pick(listing, number, common, step, bad, known.beside(recorded))
            owed = known.owed(choice.name, recorded)
            return replace(choice, owed=owed, damaged=tuple(recorded.damaged.items()))
        except StorageFailed as error:
            if number is None or step is not None:
                return Choice(-1 if number is None else number, problem=error)
            return self._without_store(number, common, known, error)
        except CheckpointError as error:
            return Choice(-1 if number is None else number, problem=error)

    def number(self, generation: int | None) -> int:
        """What the store calls this life of a script that saves and never restores.

        If the store does not know, the number comes from memory or from the control service's own count: the
        fence keeps a number that is too low from winning over anything, and only saves fail by it. Raises
        CheckpointFenced if another run has taken over.
        """
        try:
            return self._begin(generation)
        except CheckpointFenced:
            raise
        except CheckpointError:
            if generation is None:
                raise
            expected = self._expected(generation)
            return generation if expected is None else expected

    def _begin(self, generation: int | None) -> int:
        """Register this life of the job; its number in the store."""
        if generation is None:
            if self._number is None:
                self._number = claim(self._storage, self._job, secrets.token_hex(6))
            return self._number
        if self._number is None and self._run:
            begun = runs.number_in_store(self._storage, self._job, self._run, generation)
            runs.remember(self._folder, self._run, begun)
            self._number = begun.number_of(generation)
        elif self._number is None:
            self._number = generation
        if self._run:
            runs.begin_run(self._storage, self._job, self._run, self._number)
        else:
            begin(self._storage, self._job, self._number)
        return self._number

    def _expected(self, generation: int | None) -> int | None:
        """The number without the store, for when it is unreachable; None if only the store knows it."""
        if generation is None or not self._run:
            return generation
        begun = runs.recall(self._folder, self._run)
        return begun.number_of(generation) if begun else None

    def _without_store(
        self, generation: int, common: Set[CheckpointName], known: Known, error: StorageFailed
    ) -> Choice:
        """Memory alone, if it certainly holds the newest state; starting from nothing would lose work."""
        safe = known.safe(common, generation)
        if safe:
            owed = known.owed(safe[0], Generations(frozenset(), {}))
            notes = (f"restoring from memory alone, because {error.message}",)
            return Choice(generation, safe[0], notes=notes, owed=owed)
        held = "memory holds no state that all ranks have"
        if common:
            newest = max(common, key=lambda name: name.age)
            held = f"memory holds {newest}, which may be of a line that was left"
        problem = type(error)(
            f"the checkpoints of {self._job} cannot be read and {held}: {error.message}",
            hint="make the store reachable and writable; beginning from nothing would lose what it holds",
        )
        return Choice(generation, problem=problem)
