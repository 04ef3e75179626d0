"""Histories of a hostile world in which people steer: what never happens, and what always does in the end."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from steered_world import STEERED, STEERED_WEIGHTS, SteeredWorld

from torchloom.core.reducer import apply
from torchloom.model.fleet import Fleet
from torchloom.wire import codec

NAMES = [name for name in STEERED for _ in range(STEERED_WEIGHTS.get(name, 1))]
History = list[tuple[str, int]]
histories = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 2310)), max_size=80)
EXAMPLES = int(os.environ.get("LOOM_TEST_EXAMPLES", "60"))
calm_settings = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def live_through(history: History) -> SteeredWorld:
    world = SteeredWorld()
    for action, number in history:
        STEERED[action](world, number)
        world.check_told()
    return world


def check_end(world: SteeredWorld) -> None:
    world.calm()
    world.check_alive()
    world.finish_all()
    world.check_nothing_left()
    world.check_told()


@given(histories)
@calm_settings
def test_every_operation_is_told_and_nothing_is_left(history: History) -> None:
    check_end(live_through(history))


@pytest.mark.parametrize("seed", range(20))
def test_long_seeded_steered_histories(seed: int) -> None:
    chance = random.Random(seed)
    check_end(live_through([(chance.choice(NAMES), chance.randrange(2310)) for _ in range(400)]))


def test_the_histories_get_somewhere() -> None:
    """A world in which no change is ever applied would prove little."""
    states: Counter[tuple[str, str]] = Counter()
    wanted = [
        (kind, told) for kind in ("set", "pause", "stop", "restore") for told in ("applied", "not applied")
    ]
    for seed in range(200):  # what is possible changes with the world; some of it is rare
        if all(states[one] for one in wanted):
            break
        chance = random.Random(seed)
        world = live_through([(chance.choice(NAMES), chance.randrange(2310)) for _ in range(400)])
        for job in world.fleet.jobs.values():
            states.update((record.kind.value, record.state) for record in job.operations.values())
    assert all(states[one] for one in wanted), states


@given(histories)
@settings(calm_settings, max_examples=max(20, EXAMPLES // 3))
def test_a_steered_replay_gives_the_same_fleet(history: History) -> None:
    world = live_through(history)
    fleet, again = Fleet(), []
    for envelope, seq, now_ns in world.stream:
        fleet = codec.decode_fleet(codec.encode(fleet)) if seq % 7 == 0 else fleet
        again += apply(fleet, codec.decode_envelope(codec.encode(envelope)), seq, now_ns)
    assert again == world.wanted
    assert codec.encode(fleet) == codec.encode(world.fleet)
