"""Gives the memory tiers of ended jobs back.

The core says when a job has ended (ReleaseMemory). Should its word not come, because the control plane is
away or does not know the job any more, the agent sees that nothing of it lives here: no worker, no start
under way, no store for a next generation. A recovery takes seconds, so a tier that was needed by nobody for
LINGER_S is released (LINGER_COPIED_S if other nodes keep copies of it). Should a job come back later than
that, it restores from its store instead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from torchloom.agent.host import Host
from torchloom.checkpoint.memory import tier
from torchloom.home import Home
from torchloom.model.effects import ReleaseMemory
from torchloom.model.events import EffectDone
from torchloom.model.ids import check_token

log = logging.getLogger(__name__)

LINGER_S = 30.0
LINGER_COPIED_S = 900.0
"""The same where states are copied between nodes: somebody may have to confirm that a node is gone before the
next generation can begin, and until then the surviving nodes hold the only states in memory."""
_LOOK_EVERY_S = 2.0


def places(home: Home, job: str) -> dict[str, str]:
    """Environment variables that say where states go; the job's own variables take precedence."""
    told = {"LOOM_CHECKPOINT_DIR": str(home.root / "checkpoints")}
    if home.boxes != home.boxes_fallback:  # else it would be a disk
        told["LOOM_MEMORY_DIR"] = str(tier.directory(home.boxes, job))
    return told


def release_memory(host: Host, effect: ReleaseMemory) -> EffectDone:
    """The job has ended; a newer one of its name, or a life begun since, keeps its memory."""
    folder = tier.directory(host.home.boxes, check_token(effect.job, "job name"))
    living = [ref for ref in (*host.workers, *host.starting) if ref.job == effect.job]
    if folder.is_dir() and not any(ref.generation > effect.generation for ref in living):
        _release(effect.job, folder)
    return EffectDone(node=host.node, effect=effect.id)


async def keep(host: Host) -> None:
    """Watch over the tiers of this host."""
    idle_since: dict[str, float] = {}
    while True:
        release_idle(host, idle_since, time.monotonic(), LINGER_S)
        await asyncio.sleep(_LOOK_EVERY_S)


def release_idle(host: Host, idle_since: dict[str, float], now_s: float, linger_s: float) -> None:
    """Release tiers that have been unused for that long; `idle_since` keeps state between calls."""
    needed = {ref.job for ref in (*host.workers, *host.starting)} | {store.job for store in host.stores}
    found = dict(tier.found_in(host.home.boxes))
    for job in set(idle_since) - (set(found) - needed):
        del idle_since[job]
    for job, folder in found.items():
        patience_s = max(linger_s, LINGER_COPIED_S) if linger_s and _is_copied(folder) else linger_s
        if job not in needed and now_s - idle_since.setdefault(job, now_s) >= patience_s:
            _release(job, folder)


def _is_copied(folder: Path) -> bool:
    return tier.neighbour(folder).exists()


def _release(job: str, folder: Path) -> None:
    log.info("the memory tier of %s is released (%d MiB)", job, tier.size(folder) >> 20)
    tier.release(folder)
