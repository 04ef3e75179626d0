"""Gathers one state of all ranks on this host, after the number of ranks has changed.

Shards lie elsewhere then, so a rank may need a part of any image; with all of them on its host it reshards
from memory, as it would from the store (filling.py). Every node of the start gathers the same state: the
newest that all former ranks have somewhere, in their own memory or at their neighbours. What is on this host
gets another name and is not copied. The set is not touched by the training, and is dropped once all ranks
have a newer state.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from torchloom.agent.neighbour import slot_transfer
from torchloom.agent.neighbour.channel import Calls, Channel, NeighbourFailed
from torchloom.agent.neighbour.fetching import get, get_notes
from torchloom.agent.neighbour.plans import KeptPlan
from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.memory.arriving import Bringing
from torchloom.model.effects import StartWorkers
from torchloom.model.neighbours import MemoryPeer, RankMemory

log = logging.getLogger(__name__)

Age: TypeAlias = tuple[int, int, int, int]
"""(generation, branch, step, number of the save): equal on all hosts, and higher for a newer state."""


@dataclass
class _Found:
    """Where the states of the ranks are."""

    here: dict[int, dict[str, Path]] = field(default_factory=dict)
    at: dict[int, dict[str, MemoryPeer]] = field(default_factory=dict)
    ages: dict[str, Age] = field(default_factory=dict)

    def newest_of_all(self, ranks: Sequence[int]) -> str:
        """The save of the newest state that is to be had of every rank; empty: there is none."""
        of_each = [{*self.here.get(rank, ()), *self.at.get(rank, ())} for rank in ranks]
        common = set.intersection(*of_each) if of_each else set()
        return max(common, key=lambda save: (self.ages[save], save), default="")


class Gathering:
    """What one start needs."""

    def __init__(
        self, effect: StartWorkers, folder: Path, plan: KeptPlan, wanted: Callable[[], bool]
    ) -> None:
        assert effect.memory is not None
        self._effect, self._folder, self._plan, self._wanted = effect, folder, plan, wanted
        self._world = effect.memory.world
        self.calls = Calls()
        self.fetched = 0

    def run(self, ranks: Sequence[RankMemory], bringing: Mapping[int, Bringing]) -> None:
        """Closes what it was given: ranks wait for the whole state."""
        try:
            self._gather(ranks)
        finally:
            for one in bringing.values():
                one.close()

    def _gather(self, ranks: Sequence[RankMemory]) -> None:
        found = self._look(ranks)
        save = found.newest_of_all([one.rank for one in ranks])
        if not save:
            return  # what was gathered before stays: it may still be the newest
        for path in tier.all_gathered(self._folder):
            if save not in [slot.header.save for slot in slot_transfer.slots([path])]:
                path.unlink(missing_ok=True)
        for rank in found.here:
            if save in found.here[rank]:
                self._rename(found.here[rank][save], tier.gathered(self._folder, rank))
        for slot in slot_transfer.shared_slots(self._folder):
            if slot.header.save == save:
                self._rename(slot.path, tier.gathered(self._folder, tier.SHARED))
        for peer, missing in self._missing(ranks, found, save).items():
            self._ask(peer, missing, save)
        self.fetched = sum(bool(slot_transfer.gathered_slots(self._folder, one.rank)) for one in ranks)
        if self.fetched == len(ranks):
            self._drop_others()

    def _look(self, ranks: Sequence[RankMemory]) -> _Found:
        found = _Found()
        for rank in ranks:
            for slot in slot_transfer.all_slots(self._folder, rank.rank):
                if slot.header.world == self._world:
                    name, save = slot.header.name, slot.header.save
                    found.here.setdefault(rank.rank, {})[save] = slot.path
                    found.ages[save] = (name.generation, name.branch, name.step, _number(save))
        for peer in dict.fromkeys(peer for rank in ranks for peer in rank.peers):
            asked = [rank.rank for rank in ranks if peer in rank.peers]
            with self._tolerating(peer), self._calling(peer) as channel:
                for number in asked:
                    channel.say(ask="list", rank=number)
                    for state in channel.hear()["states"]:
                        self._note(found, number, peer, state)
        return found

    def _note(self, found: _Found, rank: int, peer: MemoryPeer, state: dict[str, Any]) -> None:
        if state["world"] == self._world:
            save = str(state["save"])
            found.at.setdefault(rank, {}).setdefault(save, peer)
            age = (int(state["generation"]), int(state["branch"]), int(state["step"]), _number(save))
            found.ages.setdefault(save, age)

    def _missing(self, ranks: Sequence[RankMemory], found: _Found, save: str) -> dict[MemoryPeer, list[int]]:
        missing: dict[MemoryPeer, list[int]] = {}
        for rank in ranks:
            if not slot_transfer.gathered_slots(self._folder, rank.rank):
                missing.setdefault(found.at[rank.rank][save], []).append(rank.rank)
        return missing

    def _ask(self, peer: MemoryPeer, ranks: list[int], save: str) -> None:
        with self._tolerating(peer), self._calling(peer) as channel:
            for rank in ranks:
                get(channel, rank, save, "own", tier.gathered(self._folder, rank), self._wanted)
            if not slot_transfer.gathered_slots(self._folder, tier.SHARED):
                path = tier.gathered(self._folder, tier.SHARED)
                get(channel, ranks[0], save, tier.SHARED, path, self._wanted)
            get_notes(channel, self._folder)

    def _calling(self, peer: MemoryPeer) -> AbstractContextManager[Channel]:
        return self.calls.call(peer.host, peer.port, self._effect.job, self._plan.secret)

    @contextmanager
    def _tolerating(self, peer: MemoryPeer) -> Iterator[None]:
        """What cannot be had from another agent is logged and left out."""
        try:
            yield
        except (NeighbourFailed, OSError, KeyError, TypeError, ValueError) as error:
            log.info("%s is not gathered from %s: %s", self._effect.job, peer.node, error)

    def _rename(self, path: Path, to: Path) -> None:
        if path != to:
            with suppress(OSError):
                os.replace(path, to)

    def _drop_others(self) -> None:
        """States of the former number of ranks are of no use any more."""
        mine = {launch.ref.rank for launch in self._effect.launches}
        former = range(self._world)
        gone = [slot for rank in former for slot in slot_transfer.copied_slots(self._folder, rank)]
        gone += [slot for r in former if r not in mine for slot in slot_transfer.own_slots(self._folder, r)]
        for slot in gone:
            if slot.header.world == self._world:
                slot.path.unlink(missing_ok=True)


def _number(save: str) -> int:
    """How many saves there were before it, of the same processes."""
    tail = save.rpartition(".")[2]
    return int(tail) if tail.isdecimal() else 0
