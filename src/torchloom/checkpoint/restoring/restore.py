"""Finding the newest state that all ranks can load, and loading it.

Owns the order of a restore: register the generation, compare what is in memory with what is in the store,
load on every rank, agree that all could, record the choice. One rank looks and all obey, so ranks cannot
choose differently. A state that some rank cannot load is passed over by all, said aloud, and the next one
is tried.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from torchloom.checkpoint import reporting
from torchloom.checkpoint.group import SaveGroup, new_series
from torchloom.checkpoint.memory.hostline import Known, together
from torchloom.checkpoint.memory.slots import KeptState, MemoryTier, Offer, held_by_all
from torchloom.checkpoint.restoring.choosing import Choice
from torchloom.checkpoint.restoring.deciding import Decider
from torchloom.checkpoint.restoring.loading import stream_memory, stream_store
from torchloom.checkpoint.state.filling import Filling, Images
from torchloom.checkpoint.state.training_parts import State
from torchloom.checkpoint.store.catalogue import mark_damaged
from torchloom.checkpoint.store.generations import settle
from torchloom.checkpoint.store.names import Branch, CheckpointName
from torchloom.checkpoint.store.storage import Storage
from torchloom.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointFenced,
    RestoreDiffers,
    StorageFailed,
    UsageError,
)

_Failure: TypeAlias = StorageFailed | RestoreDiffers


def _failure(error: CheckpointError) -> type[_Failure] | None:
    """What ends the restore, because another state would not be better off."""
    return type(error) if isinstance(error, (StorageFailed, RestoreDiffers)) else None


@dataclass(frozen=True)
class Restored:
    """Where this life of the job resumes."""

    generation: int
    step: int
    name: str
    where: str
    took_s: float
    owed: Mapping[Branch, CheckpointName | None] = field(default_factory=dict)
    """Choices on the way to it that the store may not know yet."""
    series: str = ""
    """Begins the names of the saves that follow (saver.py)."""
    differs: tuple[str, ...] = ()
    """Where objects of the script hold something else than was saved, on this rank (readback.py)."""


class Restorer:
    """Restores one script's state."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        job: str,
        group: SaveGroup,
        tier: MemoryTier | None,
        run: str = "",
    ) -> None:
        self._state, self._storage, self._job, self._group = state, storage, job, group
        self._tier = tier
        self._decider = Decider(storage, job, run, tier.directory if tier is not None else None)
        self._bad_in_memory: set[KeptState] = set()
        self._bad_in_store: set[CheckpointName] = set()
        self._differs: tuple[str, ...] = ()
        self.rejected: dict[str, str] = {}
        """Damaged states that were passed over, by name, and why; only rank 0 knows them."""

    def run(self, generation: int | None, step: int | None) -> Restored:
        """The newest state, or that of `step`. Raises CheckpointError when there is one that must be read
        and cannot."""
        if not self._group.connected and self._group.world > 1:
            raise UsageError(
                "restore() needs a process group, because ranks must agree on the state",
                hint="call init_process_group before",
            )
        began = time.perf_counter()
        spoiled = ""
        while True:
            offers = self._tier.offers(arriving=True) if self._tier else {}
            common, known = self._common(list(offers))
            choice = self._choose(generation, step, common.keys(), known)
            number = choice.generation
            if self._tier is not None and number >= 0:
                self._tier.line.begin(number)
            if choice.problem is not None:
                raise choice.problem
            if self._group.rank == 0:
                for note in choice.notes:
                    reporting.say(note)
                for name, why in (*choice.rejected, *choice.damaged):
                    self.rejected.setdefault(name, why)
            if choice.name is None:
                if spoiled or choice.rejected:  # to begin from nothing would be to lose all of it
                    why = spoiled or choice.rejected[0][1]
                    raise CheckpointDamaged(
                        f"{self._job} has checkpoints and none of them can be restored: {why}",
                        hint="delete them, or give the job another name, to begin from nothing",
                    )
                self._settle(choice)
                return Restored(number, 0, "", "", time.perf_counter() - began, series=choice.series)
            kept = common.get(choice.name)
            problem, failed = self._load(choice, offers[kept] if kept is not None else None)
            results = self._group.gather((problem, failed))
            problems = [text for text, _ in results if text]
            if not problems:
                self._settle(choice)
                if self._tier is not None and choice.manifest is None and kept is not None:
                    self._tier.hold(kept)
                took_s = time.perf_counter() - began
                where = (choice.name.step, str(choice.name), choice.where)
                return Restored(number, *where, took_s, choice.owed, choice.series, self._differs)
            if any(failed for _, failed in results):  # the next try may read it; an older state loses work
                kind, why = next((failed, text) for text, failed in results if failed)
                if kind is RestoreDiffers:
                    raise RestoreDiffers(f"{choice.name} was read and not restored as it was saved: {why}")
                raise kind(f"{choice.name} could not be read, so nothing was restored: {why}")
            spoiled = problems[0]
            self._reject(choice, kept, spoiled)

    def _choose(
        self, generation: int | None, step: int | None, common: Set[CheckpointName], known: Known
    ) -> Choice:
        """Rank 0's choice for all."""
        choice = None
        if self._group.rank == 0:
            choice = self._decider.choose(generation, step, common, known, self._bad_in_store)
            choice = replace(choice, series=new_series(self._group))
        shared: Choice = self._group.share(choice)
        return shared

    def _common(self, mine: list[KeptState]) -> tuple[dict[CheckpointName, KeptState], Known]:
        """(what all ranks have in memory, what their hosts know of the line); the same on all ranks."""
        known = self._tier.line.read() if self._tier is not None else Known()
        usable = [kept for kept in mine if kept not in self._bad_in_memory]
        everyone = self._group.gather((usable, known))
        return held_by_all([kept for kept, _ in everyone]), together(known for _, known in everyone)

    def _load(self, choice: Choice, offer: Offer | None) -> tuple[str, type[_Failure] | None]:
        """Load on this rank; why it could not be, or nothing, and how that failed if no file is to blame."""
        problem, failed, filling = "", None, None
        try:
            if choice.manifest is None:
                if offer is not None and self._tier is not None:
                    offer = self._tier.bring(offer)
                images = stream_memory(offer)
                if offer is not None and offer.everyone:
                    self._check_parts(images)
            else:
                group = self._group
                images = stream_store(self._storage, choice.manifest, group.rank, group.world)
            filling = Filling(self._state, images)
        except CheckpointError as error:
            problem, failed = str(error), _failure(error)
        # Warming buckets is collective: either all ranks go through it or none.
        if any(self._group.gather(problem)) or filling is None:
            return problem, failed
        self._state.warm_buckets(filling.about.get("buckets", {}))
        try:
            filling.run()
        except CheckpointError as error:
            return str(error), _failure(error)
        self._differs = tuple(filling.differs)
        return "", None

    def _check_parts(self, images: Images) -> None:
        """What all ranks share may not have reached this host. Raises CheckpointDamaged."""
        for component in self._state.components:
            if images.find(component.name) is None:
                raise CheckpointDamaged(f"{component.name} is not in the memory of this host")

    def _settle(self, choice: Choice) -> None:
        """The host notes the choice and rank 0 records it; the first commit makes up for a store that is
        away."""
        if self._tier is not None:
            self._tier.arrivals.done()
            self._tier.line.choose(Branch(choice.generation), choice.name)
        if self._group.rank == 0:
            try:
                for branch, origin in choice.owed.items():
                    settle(self._storage, self._job, branch, origin)
                settle(self._storage, self._job, choice.generation, choice.name)
            except CheckpointFenced:
                raise
            except CheckpointError as error:
                reporting.say(f"the choice of {choice.name} could not be recorded yet: {error}")

    def _reject(self, choice: Choice, kept: KeptState | None, why: str) -> None:
        assert choice.name is not None
        if choice.manifest is not None:
            self._bad_in_store.add(choice.name)
        elif kept is not None:
            self._bad_in_memory.add(kept)
        if self._group.rank != 0:
            return
        reporting.say(f"{choice.name} in {choice.where} is passed over: {why}")
        reporting.ports.log(checkpoint_rejected=f"{choice.name}: {why}")
        self.rejected[str(choice.name)] = f"{why} (in {choice.where})"
        if choice.manifest is not None:
            try:
                mark_damaged(self._storage, self._job, str(choice.name), why, time.time())
            except CheckpointError as error:
                reporting.say(f"the damage could not be noted: {error}")
