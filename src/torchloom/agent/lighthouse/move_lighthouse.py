"""Carries out MoveLighthouse: the lighthouse of a torchft job is here from now on, or on another node."""

from __future__ import annotations

import asyncio

from torchloom.agent.host import Host
from torchloom.model.effects import MoveLighthouse
from torchloom.model.events import EffectDone

_LOOK_EVERY_S = 0.1


async def move_lighthouse(host: Host, effect: MoveLighthouse) -> EffectDone:
    """Returns when it serves: if it is here, when it has the records of all nodes that it waits for."""
    while await host.lighthouses.move(effect.set, effect.lighthouse):
        await asyncio.sleep(_LOOK_EVERY_S)
    return EffectDone(node=host.node, effect=effect.id)
