"""Whole lives of the hostile world: a history of actions, and what must hold when it is over."""

from __future__ import annotations

from world import ACTIONS, WEIGHTS, World

NAMES = [name for name in ACTIONS for _ in range(WEIGHTS.get(name, 1))]


History = list[tuple[str, int]]


def live_through(history: History) -> World:
    world = World()
    for action, number in history:
        world.act(action, number)
    return world


def check_end(world: World) -> None:
    world.calm()
    world.check_alive()
    world.finish_all()
    world.check_nothing_left()
