"""Carries out what the core asks of a lighthouse. ShareChange: proposes a change to all replicas of a torchft
job and reports how it ended. SeatReplica: leaves one of them out, or takes it back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from torchloom.agent.host import Host
from torchloom.agent.lighthouse.keeper import LighthouseAway
from torchloom.model.effects import SeatReplica, ShareChange
from torchloom.model.events import ChangeShared, EffectDone

T = TypeVar("T")

_LOOK_AFTER_S, _LOOK_SELDOM_S = 0.02, 0.2


async def share_change(host: Host, effect: ShareChange) -> ChangeShared:
    """Returns when every replica has applied it, or none will. Asked again, it continues where it was."""
    beacons, name, version = host.lighthouses, effect.set, effect.version
    wait_s = _LOOK_AFTER_S
    if effect.withdrawn:
        await _patiently(partial(beacons.withdraw, name, version, effect.withdrawn))
    else:
        change = partial(beacons.change, name, version, effect.values, effect.at_step, effect.kind)
        await _patiently(change)
    while (outcome := await _patiently(partial(beacons.outcome, name, version))) is None:
        await asyncio.sleep(wait_s)
        wait_s = min(_LOOK_SELDOM_S, wait_s * 1.1)
    return ChangeShared(node=host.node, effect=effect.id, set=name, version=version, outcome=outcome)


async def seat_replica(host: Host, effect: SeatReplica) -> EffectDone:
    seat = partial(host.lighthouses.seat, out=effect.out, why=effect.reason)
    await _patiently(partial(seat, effect.set, effect.job, effect.generation))
    return EffectDone(node=host.node, effect=effect.id)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """However long the lighthouse is away: it returns, or moves. An answer that was lost is no refusal."""
    while True:
        try:
            return await ask()
        except LighthouseAway:
            await asyncio.sleep(_LOOK_SELDOM_S)
