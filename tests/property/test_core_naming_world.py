"""Strangers and rebooted hosts in a hostile world: no worker runs twice, every host has its name again."""

from __future__ import annotations

import random

import pytest
from naming_world import NAMING_ACTIONS, NAMING_WEIGHTS, NamingWorld
from world_history import check_end

from torchloom.core.reducer import apply
from torchloom.model.fleet import Fleet
from torchloom.wire import codec

NAMES = [name for name in NAMING_ACTIONS for _ in range(NAMING_WEIGHTS.get(name, 1))]


@pytest.mark.parametrize("seed", range(40))
def test_names_are_kept_in_a_hostile_world(seed: int) -> None:
    chance = random.Random(seed)
    world = NamingWorld()
    for _ in range(300):
        NAMING_ACTIONS[chance.choice(NAMES)](world, chance.randrange(2310))
    again = Fleet()
    for envelope, seq, now_ns in world.stream:
        apply(again, codec.decode_envelope(codec.encode(envelope)), seq, now_ns)
    assert codec.encode(again) == codec.encode(world.fleet), "a replay comes to the same fleet"
    check_end(world)
