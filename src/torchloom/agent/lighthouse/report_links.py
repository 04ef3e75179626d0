"""Reports which replicas of the lighthouses here cannot reach the others, and which can again."""

from __future__ import annotations

import asyncio
import itertools

from torchloom.agent.host import Host
from torchloom.errors import SpawnFailed
from torchloom.model.events import ReplicaLinksReported

_LOOK_EVERY_S = 1.0


async def watch(host: Host) -> None:
    """Until cancelled. A lighthouse keeps a notice until its event is stored."""
    reported: dict[str, int] = {}
    said = itertools.count(1)
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        for name in host.lighthouses.names():
            try:
                found = await host.lighthouses.notices(name, reported.get(name, 0))
            except (SpawnFailed, OSError):
                continue  # it is being restarted, or of the version before
            for notice in found:
                job, _, generation = notice.door.rpartition(".g")
                event = ReplicaLinksReported(
                    node=host.node,
                    job=job,
                    generation=int(generation),
                    links=notice.links,
                    out=notice.out,
                    others=notice.others,
                    why=notice.why,
                )
                await host.reporter.say(event, f"{host.session}.links.{next(said)}")
            reported[name] = max((notice.number for notice in found), default=0)
