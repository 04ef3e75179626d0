"""Gets states in memory that are not on this host, for ranks that start here.

Asks the node that ran the rank before, then that node's neighbour, which may be this one. The newest state
is brought at once, while the rank starts; another one only if the ranks agree on that (arriving.py), for
instance because a further node was lost before its newest state was copied. What cannot be had is left: the
job then restores from its store.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchloom.agent.neighbour import slot_transfer
from torchloom.agent.neighbour.channel import Calls, Channel, NeighbourFailed
from torchloom.agent.neighbour.plans import KeptPlan
from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.memory.arriving import Bringing, Promise
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.model.effects import StartWorkers
from torchloom.model.neighbours import MemoryPeer, RankMemory

log = logging.getLogger(__name__)

_AT_ONCE = 4
_LOOK_EVERY_S = 0.02


def lacks(node: str, folder: Path, rank: RankMemory, world: int) -> bool:
    """Whether the rank's newest state is not in its place on this host, and may be somewhere. What is left of
    a rank that ran elsewhere since is older."""
    if not rank.peers and not slot_transfer.copied_slots(folder, rank.rank):
        return False
    here = [slot for slot in slot_transfer.own_slots(folder, rank.rank) if slot.header.world == world]
    return rank.was_on != node or not here


class Fetch:
    """What one start needs."""

    def __init__(
        self, effect: StartWorkers, folder: Path, plan: KeptPlan, wanted: Callable[[], bool]
    ) -> None:
        self._effect, self._folder, self._plan, self._wanted = effect, folder, plan, wanted
        self._placing = threading.Lock()
        self._slots: dict[str, int] = {}
        self.calls = Calls()
        self.fetched = 0

    def run(self, ranks: Sequence[RankMemory], bringing: Mapping[int, Bringing]) -> None:
        """Closes what it was given."""
        try:
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="loom-fetch") as pool:
                found = pool.map(lambda rank: self._fetch(rank, bringing[rank.rank]), ranks)
                self.fetched = sum(found)
            if not any(one.wished() for one in bringing.values()):
                for slot in range(tier.SLOTS):
                    tier.arriving(self._folder, tier.SHARED, slot).unlink(missing_ok=True)
        finally:
            for one in bringing.values():
                one.close()

    def _fetch(self, rank: RankMemory, bringing: Bringing) -> bool:
        tried: set[str] = set()
        brought = False
        save: str | None = ""
        while save is not None and self._wanted():
            brought = self._from_any(rank, bringing, save)
            tried |= {save or next(iter(bringing.published), "")}
            save = self._other(bringing, tried, wait=brought)
        if not brought and bringing.wished() != "":
            return self._from_here(rank.rank)
        return brought

    def _other(self, bringing: Bringing, tried: Set[str], wait: bool) -> str | None:
        """The save that the rank wants instead; None: nothing more, and who waits for what failed knows."""
        while (wished := bringing.wished()) is None and wait and self._wanted():
            time.sleep(_LOOK_EVERY_S)
        return wished if wished in set(bringing.published) - tried else None

    def _from_any(self, rank: RankMemory, bringing: Bringing, save: str) -> bool:
        for peer in rank.peers:
            try:
                if self._from(peer, rank.rank, bringing, save):
                    return True
            except (NeighbourFailed, OSError, KeyError, TypeError, ValueError) as error:
                log.info(
                    "rank %d of %s is not fetched from %s: %s", rank.rank, self._effect.job, peer.node, error
                )
        return False

    def _from_here(self, rank: int) -> bool:
        """This host itself was the neighbour: its copies become the rank's own states."""
        found = slot_transfer.copied_slots(self._folder, rank)
        copies = [slot for slot in found if slot.header.world == self._effect.world_size]
        saves = [slot.header.save for slot in copies]
        for slot in copies:
            try:
                number = self._slot(slot.header.save, saves)
                os.replace(slot.path, tier.file(self._folder, tier.own(rank), number))
            except (NeighbourFailed, OSError) as error:
                log.info("a copy of rank %d of %s is not used: %s", rank, self._effect.job, error)
        return bool(copies)

    def _from(self, peer: MemoryPeer, rank: int, bringing: Bringing, save: str) -> bool:
        with self.calls.call(peer.host, peer.port, self._effect.job, self._plan.secret) as channel:
            channel.say(ask="list", rank=rank)
            states = [one for one in channel.hear()["states"] if one["world"] == self._effect.world_size]
            saves = list(dict.fromkeys(str(one["save"]) for one in states))[: slot_transfer.COPIES]
            if bringing.published:
                saves = [one for one in saves if one in bringing.published]
            elif saves:
                with self._placing:
                    get_notes(channel, self._folder)
                bringing.publish([self._promise(states, save, saves) for save in saves])
            save = save or next(iter(saves), "")
            if save not in saves:
                return False

            def wanted() -> bool:
                return self._wanted() and bringing.wished() in (None, save)

            slot = self._slot(save, saves)
            with self._placing:
                if not self._has_shared(slot, save):
                    path = tier.arriving(self._folder, tier.SHARED, slot)
                    get(channel, rank, save, tier.SHARED, path, wanted)
            path = tier.arriving(self._folder, tier.own(rank), slot)
            return get(channel, rank, save, "own", path, wanted)

    def _promise(self, states: Sequence[dict[str, Any]], save: str, saves: list[str]) -> Promise:
        one = next(state for state in states if str(state["save"]) == save)
        name = CheckpointName(int(one["generation"]), int(one["step"]), int(one["branch"]))
        return Promise(name, save, int(one["world"]), self._slot(save, saves))

    def _has_shared(self, slot: int, save: str) -> bool:
        """Whether it is here. A rank may move it to its place meanwhile, so that is looked at last."""
        paths = [tier.arriving(self._folder, tier.SHARED, slot), tier.file(self._folder, tier.SHARED, slot)]
        return any(save == kept.header.save for path in paths for kept in slot_transfer.slots([path]))

    def _slot(self, save: str, saves: list[str]) -> int:
        """The same slot for one state on all ranks of the host: a rank that protects a slot protects what is
        shared in it."""
        with self._placing:
            if save not in self._slots:
                numbers = range(tier.SLOTS)
                taken = set(self._slots.values()) | {n for n in numbers if self._holds(n, saves)}
                own = next((n for n in numbers if self._holds(n, [save])), None)
                free = next((n for n in numbers if n not in taken), None)
                if own is None and free is None:
                    raise NeighbourFailed("no slot is free")
                self._slots[save] = own if own is not None else free  # type: ignore[assignment]
            return self._slots[save]

    def _holds(self, number: int, saves: list[str]) -> bool:
        paths = [path for path in self._folder.glob(f"*.{number}") if not path.name.startswith("copy-")]
        return any(slot.header.save in saves for slot in slot_transfer.slots(paths))


def get(channel: Channel, rank: int, save: str, kind: str, path: Path, wanted: Callable[[], bool]) -> bool:
    """Get one image; False: it has gone since, or the job has none of this kind. Raises NeighbourFailed."""
    channel.say(ask="get", rank=rank, save=save, kind=kind)
    size = int(channel.hear()["size"])
    if not size:
        return False
    slot_transfer.reserve(path, size)
    slot_transfer.receive(channel, path, size, save, wanted)
    return True


def get_notes(channel: Channel, folder: Path) -> None:
    """What the other host knows of the line of descent, for a restore while the store is away."""
    channel.say(ask="notes")
    notes = channel.hear()["notes"]
    for path in (tier.line_file(folder), tier.numbers(folder)):
        if path.name in notes and not path.exists():
            with suppress(OSError):
                path.write_text(str(notes[path.name]))
