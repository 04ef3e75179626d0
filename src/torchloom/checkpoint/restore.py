"""Finding the newest state that all ranks can load, and loading it.

Owns the order of a restore: register the generation, compare what is in memory with what is in the store,
load on every rank, agree that all could, record the choice. One rank looks and all obey, so ranks cannot
choose differently. A state that some rank cannot load is passed over by all, said aloud, and the next one
is tried.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from torchloom.checkpoint import runs, telling
from torchloom.checkpoint.catalogue import mark_damaged
from torchloom.checkpoint.choosing import Choice, pick
from torchloom.checkpoint.filling import Filling
from torchloom.checkpoint.generations import begin, claim, settle
from torchloom.checkpoint.group import Group
from torchloom.checkpoint.loading import from_memory, from_store
from torchloom.checkpoint.memory import MemoryTier, Sealed
from torchloom.checkpoint.names import CheckpointName
from torchloom.checkpoint.reader import look
from torchloom.checkpoint.state import State
from torchloom.checkpoint.storage import Storage
from torchloom.errors import CheckpointDamaged, CheckpointError, CheckpointFenced


@dataclass(frozen=True)
class Restored:
    """Where this life of the job goes on."""

    generation: int
    step: int
    name: str
    where: str
    took_s: float


class Restorer:
    """Restores one script's state."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        job: str,
        group: Group,
        tier: MemoryTier | None,
        run: str = "",
    ) -> None:
        self._state, self._storage, self._job, self._group = state, storage, job, group
        self._tier, self._run = tier, run
        self._number: int | None = None
        self._bad_in_memory: set[CheckpointName] = set()
        self._bad_in_store: set[CheckpointName] = set()
        self.rejected: dict[str, str] = {}
        """Damaged states that were passed over, by name, and why; only rank 0 knows them."""

    def run(self, generation: int | None, step: int | None) -> Restored:
        """The newest state, or that of `step`. Raises CheckpointError when there is one that must be read
        and cannot."""
        began = time.perf_counter()
        spoiled = ""
        while True:
            offers = self._tier.offers() if self._tier else {}
            common = self._common(set(offers))
            choice: Choice = self._group.share(
                self._choose(generation, step, common) if self._group.rank == 0 else None
            )
            if choice.problem is not None:
                raise choice.problem
            if self._group.rank == 0:
                for note in choice.notes:
                    telling.say(note)
                for name, why in choice.rejected:
                    self.rejected.setdefault(name, why)
            if choice.name is None:
                if spoiled:
                    raise CheckpointDamaged(f"no state could be restored: {spoiled}")
                self._settle(choice)
                return Restored(choice.generation, 0, "", "", time.perf_counter() - began)
            problem = self._load(choice, offers.get(choice.name, {}))
            problems = [text for text in self._group.gather(problem) if text]
            if not problems:
                self._settle(choice)
                if self._tier is not None and choice.manifest is None:
                    self._tier.hold(choice.name)
                took_s = time.perf_counter() - began
                return Restored(choice.generation, choice.name.step, str(choice.name), choice.where, took_s)
            spoiled = problems[0]
            self._reject(choice, spoiled)

    def _common(self, mine: set[CheckpointName]) -> set[CheckpointName]:
        if not self._group.connected and self._group.world > 1:
            return set()
        return set.intersection(*self._group.gather(mine)) - self._bad_in_memory

    def _choose(self, generation: int | None, step: int | None, common: set[CheckpointName]) -> Choice:
        """Rank 0 looks. An error is part of the answer, because the others wait for one."""
        number = self._expected(generation)
        try:
            number = self._begin(generation)
            listing = look(self._storage, self._job)
            return pick(listing, number, common, step, self._bad_in_store)
        except CheckpointFenced as error:
            return Choice(number, problem=error)
        except CheckpointError as error:
            if not common or generation is None or step is not None:
                return Choice(number, problem=error)
            # The store is away and memory is not. Recording the choice is made up for by the first commit.
            return Choice(
                number,
                max(common, key=lambda name: name.age),
                notes=(f"restoring from memory, because {error}",),
            )

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
        begin(self._storage, self._job, self._number)
        return self._number

    def _expected(self, generation: int | None) -> int:
        """The number without a word from the store, for when it is away."""
        if generation is None:
            return -1
        begun = runs.recall(self._folder, self._run) if self._run else None
        return begun.number_of(generation) if begun else generation

    @property
    def _folder(self) -> Path | None:
        return self._tier.directory if self._tier is not None else None

    def _load(self, choice: Choice, offer: dict[str, Sealed]) -> str:
        """Load on this rank; why it failed, or nothing."""
        try:
            if choice.manifest is None:
                images = from_memory(offer)
            else:
                group = self._group
                images = from_store(self._storage, choice.manifest, group.rank, group.world)
            filling = Filling(self._state, images)
        except CheckpointError as error:
            filling, problem = None, str(error)
        else:
            problem = ""
        # Warming buckets is collective: either all ranks go through it or none.
        if any(self._group.gather(problem)) or filling is None:
            return problem
        self._state.warm_buckets(filling.about.get("buckets", {}))
        try:
            filling.run()
        except CheckpointError as error:
            return str(error)
        return ""

    def _settle(self, choice: Choice) -> None:
        """Rank 0 records the choice; that a store is away is made up for by the first commit."""
        if self._group.rank == 0:
            try:
                settle(self._storage, self._job, choice.generation, choice.name)
            except CheckpointFenced:
                raise
            except CheckpointError as error:
                telling.say(f"the choice of {choice.name} could not be recorded yet: {error}")

    def _reject(self, choice: Choice, why: str) -> None:
        assert choice.name is not None
        (self._bad_in_memory if choice.manifest is None else self._bad_in_store).add(choice.name)
        if self._group.rank != 0:
            return
        telling.say(f"{choice.name} in {choice.where} is passed over: {why}")
        telling.ports.log(checkpoint_rejected=f"{choice.name}: {why}")
        self.rejected[str(choice.name)] = f"{why} (in {choice.where})"
        if choice.manifest is not None:
            try:
                mark_damaged(self._storage, self._job, str(choice.name), why, time.time())
            except CheckpointError as error:
                telling.say(f"the damage could not be noted: {error}")
