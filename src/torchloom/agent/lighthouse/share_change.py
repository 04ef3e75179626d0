"""Carries out ShareChange: proposes a change to all replicas of a torchft job and reports how it ended."""

from __future__ import annotations

import asyncio

from torchloom.agent.host import Host
from torchloom.model.effects import ShareChange
from torchloom.model.events import ChangeShared

_LOOK_AFTER_S, _LOOK_SELDOM_S = 0.02, 0.2


async def share_change(host: Host, effect: ShareChange) -> ChangeShared:
    """Returns when every replica has applied it, or none will. Asked again, it continues where it was."""
    beacons, name, version = host.lighthouses, effect.set, effect.version
    if effect.withdrawn:
        await beacons.withdraw(name, version, effect.withdrawn)
    else:
        await beacons.change(name, version, effect.values, effect.at_step, effect.kind)
    wait_s = _LOOK_AFTER_S
    while (outcome := await beacons.outcome(name, version)) is None:
        await asyncio.sleep(wait_s)
        wait_s = min(_LOOK_SELDOM_S, wait_s * 1.1)
    return ChangeShared(node=host.node, effect=effect.id, set=name, version=version, outcome=outcome)
