"""What an agent does about states in memory when ranks start here, so that a worker only ever reads the
memory of its own host.

Notes where the states of this start are copied to, and has fetched what is missing here (fetching.py) or,
after a change of the number of ranks, gathered (gathering.py), while the ranks start: they wait for it in
restore() (checkpoint/memory/arriving.py). What cannot be had in time is left: the job then restores from its
store.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom.agent.neighbour import plans
from torchloom.agent.neighbour.fetching import Fetch, lacks
from torchloom.agent.neighbour.gathering import Gathering
from torchloom.agent.neighbour.plans import KeptPlan
from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.memory.arriving import Bringing
from torchloom.model.effects import StartWorkers
from torchloom.model.neighbours import RankMemory
from torchloom.private import make_private

if TYPE_CHECKING:
    from torchloom.agent.host import Host

log = logging.getLogger(__name__)

WITHIN_S = 300.0
"""How long a start waits for states at most while they move (channel.STALLED_S if they do not)."""
_LOOK_EVERY_S = 0.05
_HANG_UP_WITHIN_S = 0.5


class Fetches:
    """What is being brought to this host, by job."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, job: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[job] = asyncio.create_task(work, name=f"fetch {job}")
        task.add_done_callback(lambda _: self._forget(job, task))

    async def end(self, job: str) -> None:
        """An earlier start of the job needs nothing any more, and writes nothing from here on."""
        task = self._tasks.get(job)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def wait(self) -> None:
        """Until everything is here or given up."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    def _forget(self, job: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(job) is task:
            del self._tasks[job]


async def prepare_memory(host: Host, effect: StartWorkers, env: Mapping[str, str]) -> None:
    """Note where states of this start are copied to, and begin to get what is missing here. Never raises: a
    start without it restores from the store."""
    await host.fetches.end(effect.job)
    plan = plans.keep(host.home, effect, env)
    if plan is None or effect.memory is None:
        return
    if plan.copy_to.node and host.door is not None:
        host.door.open()
    folder, wanted = tier.directory(host.home.boxes, effect.job), effect.memory.ranks
    if not effect.memory.world:
        wanted = tuple(one for one in wanted if lacks(host.node, folder, one, effect.world_size))
    if not wanted:
        return
    waiting = [launch.ref.rank for launch in effect.launches] if effect.memory.world else None
    bringing: dict[int, Bringing] = {}
    try:
        make_private(folder)
        for rank in waiting if waiting is not None else [one.rank for one in wanted]:
            bringing[rank] = Bringing(folder, rank)
    except OSError as error:
        log.info("states of %s in memory are not brought: %s", effect.job, error)
        for one in bringing.values():
            one.close()
        return
    host.fetches.begin(effect.job, _bring(host, effect, folder, plan, wanted, bringing))


async def _bring(
    host: Host,
    effect: StartWorkers,
    folder: Path,
    plan: KeptPlan,
    wanted: tuple[RankMemory, ...],
    bringing: Mapping[int, Bringing],
) -> None:
    """As long as the ranks of the start live, and not for too long."""
    stop = threading.Event()
    kind = Gathering if effect.memory is not None and effect.memory.world else Fetch
    work = kind(effect, folder, plan, lambda: not stop.is_set())
    began_s = time.monotonic()
    thread = threading.Thread(target=work.run, args=(wanted, bringing), name="loom-fetch", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            if not _needed(host, effect) or time.monotonic() - began_s > WITHIN_S:
                break
            await asyncio.sleep(_LOOK_EVERY_S)
    finally:
        stop.set()
        work.calls.hang_up()  # nothing is written from here on, even if the thread still tries to connect
        thread.join(_HANG_UP_WITHIN_S)
    log.info(
        "%s: states of %d of %d ranks brought from memory of this and other nodes in %.2f s",
        effect.job,
        work.fetched,
        len(wanted),
        time.monotonic() - began_s,
    )


def _needed(host: Host, effect: StartWorkers) -> bool:
    refs = {launch.ref for launch in effect.launches}
    living = {worker.ref for worker in host.running()} | set(host.starting)
    return bool(refs & living) and not refs & host.withdrawn
