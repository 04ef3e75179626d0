"""Gets states in memory that are not on this host before ranks start here, so that a worker only ever reads
the memory of its own host and waits for no network.

Asks the node that ran the rank before, then that node's neighbour. What cannot be had in time is left: the
job then restores from its store.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from torchloom.agent.host import Host
from torchloom.agent.neighbour import plans, slot_transfer
from torchloom.agent.neighbour.channel import Channel, NeighbourFailed, call
from torchloom.agent.neighbour.plans import KeptPlan
from torchloom.checkpoint.memory import tier
from torchloom.model.effects import StartWorkers
from torchloom.model.neighbours import MemoryPeer, RankMemory

log = logging.getLogger(__name__)

WITHIN_S = 300.0
"""How long a start waits for states at most while they move (channel.STALLED_S if they do not)."""
_AT_ONCE = 4
_LOOK_EVERY_S = 0.05


async def prepare_memory(host: Host, effect: StartWorkers, env: Mapping[str, str]) -> None:
    """Note where states of this start are copied to, and fetch what is missing here. Never raises: a start
    without it restores from the store."""
    plan = plans.keep(host.home, effect, env)
    if plan is None or effect.memory is None or host.door is None:
        return
    host.door.open()
    folder = tier.directory(host.home.boxes, effect.job)
    missing = [one for one in effect.memory.ranks if _missing(host.node, folder, one, effect.world_size)]
    if not missing:
        return
    refs, stop = [launch.ref for launch in effect.launches], threading.Event()
    began_s = time.monotonic()
    fetch = _Fetch(effect, folder, plan, lambda: not stop.is_set())
    work = asyncio.create_task(asyncio.to_thread(fetch.run, missing))
    try:
        while not work.done():
            await asyncio.wait([work], timeout=_LOOK_EVERY_S)
            if host.withdrawn.intersection(refs) or time.monotonic() - began_s > WITHIN_S:
                stop.set()
                break
        if work.done():
            await work
    finally:
        stop.set()
    took_s = time.monotonic() - began_s
    log.info(
        "%s: states of %d of %d ranks fetched from other nodes' memory in %.2f s",
        effect.job,
        fetch.fetched,
        len(missing),
        took_s,
    )


def _missing(node: str, folder: Path, rank: RankMemory, world: int) -> bool:
    """Whether the rank's newest state is not on this host. What is left of a rank that ran elsewhere since
    is older."""
    if not rank.peers:
        return False
    here = [slot for slot in slot_transfer.own_slots(folder, rank.rank) if slot.header.world == world]
    return rank.was_on != node or not here


class _Fetch:
    """What one start needs."""

    def __init__(
        self, effect: StartWorkers, folder: Path, plan: KeptPlan, wanted: Callable[[], bool]
    ) -> None:
        self._effect, self._folder, self._plan, self._wanted = effect, folder, plan, wanted
        self._placing = threading.Lock()
        self._slots: dict[str, int] = {}
        self.fetched = 0

    def run(self, ranks: list[RankMemory]) -> None:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="loom-fetch") as pool:
            self.fetched = sum(pool.map(self._fetch, ranks))

    def _fetch(self, rank: RankMemory) -> bool:
        for peer in rank.peers:
            try:
                if self._from(peer, rank.rank):
                    return True
            except (NeighbourFailed, OSError, KeyError, TypeError, ValueError) as error:
                log.info(
                    "rank %d of %s is not fetched from %s: %s", rank.rank, self._effect.job, peer.node, error
                )
        return False

    def _from(self, peer: MemoryPeer, rank: int) -> bool:
        with call(peer.host, peer.port, self._effect.job, self._plan.secret) as channel:
            channel.say(ask="list", rank=rank)
            states = [one for one in channel.hear()["states"] if one["world"] == self._effect.world_size]
            saves = list(dict.fromkeys(str(one["save"]) for one in states))[: slot_transfer.COPIES]
            for save in saves:
                slot = self._slot(rank, save, saves)
                self._get(channel, rank, save, "own", tier.file(self._folder, tier.own(rank), slot))
                with self._placing:
                    shared = {one.header.save for one in slot_transfer.shared_slots(self._folder)}
                    if save not in shared:
                        path = tier.file(self._folder, tier.SHARED, slot)
                        self._get(channel, rank, save, tier.SHARED, path)
            if saves:
                self._notes(channel)
            return bool(saves)

    def _slot(self, rank: int, save: str, saves: list[str]) -> int:
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

    def _get(self, channel: Channel, rank: int, save: str, kind: str, path: Path) -> None:
        channel.say(ask="get", rank=rank, save=save, kind=kind)
        size = int(channel.hear()["size"])
        if not size:
            return  # it has gone since, or this job shares nothing
        if size > tier.usable(self._folder) + (path.stat().st_size if path.exists() else 0):
            raise NeighbourFailed(f"there is no room for {size >> 20:,} MiB")
        slot_transfer.receive(channel, path, size, save, self._wanted)

    def _notes(self, channel: Channel) -> None:
        """What the other host knows of the line of descent, for a restore while the store is away."""
        channel.say(ask="notes")
        notes = channel.hear()["notes"]
        with self._placing:
            for path in (tier.line_file(self._folder), tier.numbers(self._folder)):
                if path.name in notes and not path.exists():
                    with suppress(OSError):
                        path.write_text(str(notes[path.name]))
