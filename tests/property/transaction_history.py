"""Whole lives of the transaction world: histories, and what must hold when they are over."""

from __future__ import annotations

import random

from transaction_checks import check_end
from transaction_weights import MOST, SHARP
from transaction_world import World

SHARP_NAMES = [name for name, weight in SHARP.items() for _ in range(weight)]


History = list[tuple[str, int]]


def live_through(world: World, history: History) -> None:
    for action, number in history:
        world.act(action, number)
    world.calm()
    check_end(world)


def sharp_history(seed: int) -> History:
    """One change, armed on all ranks or nearly so; then anything."""
    chance = random.Random(seed)
    history = [(chance.choice(SHARP_NAMES), chance.randrange(MOST)) for _ in range(30)]
    return [("request", chance.randrange(MOST)), ("hurry", chance.randrange(4)), *history]
