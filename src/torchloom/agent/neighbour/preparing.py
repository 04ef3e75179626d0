"""What an agent does about states in memory before ranks start here, so that a worker only ever reads the
memory of its own host and waits for no network.

Notes where the states of this start are copied to, and has fetched what is missing here (fetching.py) or,
after a change of the number of ranks, gathered (gathering.py). What cannot be had in time is left: the job
then restores from its store.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping

from torchloom.agent.host import Host
from torchloom.agent.neighbour import plans
from torchloom.agent.neighbour.fetching import Fetch, lacks
from torchloom.agent.neighbour.gathering import Gathering
from torchloom.checkpoint.memory import tier
from torchloom.model.effects import StartWorkers
from torchloom.private import make_private

log = logging.getLogger(__name__)

WITHIN_S = 300.0
"""How long a start waits for states at most while they move (channel.STALLED_S if they do not)."""
_LOOK_EVERY_S = 0.05


async def prepare_memory(host: Host, effect: StartWorkers, env: Mapping[str, str]) -> None:
    """Note where states of this start are copied to, and get what is missing here. Never raises: a start
    without it restores from the store."""
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
    try:
        make_private(folder)
    except OSError:
        return
    refs, stop = [launch.ref for launch in effect.launches], threading.Event()
    work: Fetch | Gathering
    if effect.memory.world:
        work = Gathering(effect, folder, plan, lambda: not stop.is_set())
    else:
        work = Fetch(effect, folder, plan, lambda: not stop.is_set())
    began_s = time.monotonic()
    task = asyncio.create_task(asyncio.to_thread(work.run, wanted))
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_LOOK_EVERY_S)
            if host.withdrawn.intersection(refs) or time.monotonic() - began_s > WITHIN_S:
                stop.set()
                break
        if task.done():
            await task
    finally:
        stop.set()
    took_s = time.monotonic() - began_s
    log.info(
        "%s: states of %d of %d ranks brought from memory of this and other nodes in %.2f s",
        effect.job,
        work.fetched,
        len(wanted),
        took_s,
    )
