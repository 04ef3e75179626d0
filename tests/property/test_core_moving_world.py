"""Drained, left and fenced nodes in a hostile world: nothing runs twice, and nothing is stuck in the end."""

from __future__ import annotations

import random

import pytest
from moving_world import MOVE_WEIGHTS, MOVES, MovingWorld
from told_changes import apply_and_check

from torchloom.model.fleet import Fleet
from torchloom.wire import codec

NAMES = [name for name in MOVES for _ in range(MOVE_WEIGHTS.get(name, 1))]


@pytest.mark.parametrize("seed", range(40))
def test_safe_always_and_alive_once_the_world_is_calm(seed: int) -> None:
    chance = random.Random(seed)
    world = MovingWorld()
    for _ in range(300):
        MOVES[chance.choice(NAMES)](world, chance.randrange(2310))
    again = Fleet()
    for envelope, seq, now_ns in world.stream:
        apply_and_check(again, codec.decode_envelope(codec.encode(envelope)), seq, now_ns)
    assert codec.encode(again) == codec.encode(world.fleet), "a replay comes to the same fleet"
    world.calm()
    world.check_alive()
    assert not world.fleet.leaving and not world.fleet.acting
    world.finish_all()
    world.check_nothing_left()
