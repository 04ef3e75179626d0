"""Histories of a hostile world against the core: what never happens, and what always happens in the end."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world_history import NAMES, History, check_end, live_through

from torchloom.core.reducer import apply
from torchloom.model.effects import StopWorkers
from torchloom.model.fleet import Fleet
from torchloom.wire import codec

histories = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 2310)), max_size=60)
EXAMPLES = int(os.environ.get("LOOM_TEST_EXAMPLES", "150"))
calm_settings = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@given(histories)
@calm_settings
def test_safe_always_and_alive_once_the_world_is_calm(history: History) -> None:
    check_end(live_through(history))


HARMFUL = (
    "crash",
    "fail script",
    "lose store",
    "fail next",
    "reboot",
    "gone",
    "stop",
    "restore",
    "scale",
    "obey stop",
    "delete",
)
HARMLESS = [name for name in NAMES if name not in HARMFUL]


@given(st.lists(st.tuples(st.sampled_from(HARMLESS), st.integers(0, 2310)), max_size=80))
@calm_settings
def test_where_no_worker_fails_none_is_ended_and_no_budget_is_used(history: History) -> None:
    """Agents and weavers die, messages are late, doubled or lost: training goes through it untouched."""
    world = live_through(history)
    world.calm()
    world.check_alive()
    for incident in world.fleet.incidents.values():
        assert incident.kind == "node-lost" and not incident.open, "silence was said, and that it was over"
    assert not [e for e in world.wanted if isinstance(e, StopWorkers)]


@pytest.mark.parametrize("seed", range(60))
def test_long_seeded_histories(seed: int) -> None:
    """Hypothesis likes short histories; long ones find what needs many things to have gone wrong."""
    chance = random.Random(seed)
    check_end(live_through([(chance.choice(NAMES), chance.randrange(2310)) for _ in range(400)]))


@given(histories, st.integers(0, 10_000))
@settings(calm_settings, max_examples=max(20, EXAMPLES // 3))
def test_replay_gives_the_same_fleet_and_the_same_effects(history: History, cut: int) -> None:
    world = live_through(history)
    from_start, from_cut, later = Fleet(), Fleet(), []
    cut %= len(world.stream) + 1
    again = []
    for envelope, seq, now_ns in world.stream:
        if seq - 1 == cut:
            from_cut = codec.decode_fleet(codec.encode(from_start))
        data = codec.decode_envelope(codec.encode(envelope))
        effects = apply(from_start, data, seq, now_ns)
        again += effects
        if seq - 1 >= cut:
            later.append((effects, apply(from_cut, data, seq, now_ns)))
    assert again == world.wanted
    assert codec.encode(from_start) == codec.encode(world.fleet)
    assert all(first == second for first, second in later)
    if cut < len(world.stream):
        assert codec.encode(from_cut) == codec.encode(world.fleet)


@given(histories)
@settings(calm_settings, max_examples=max(20, EXAMPLES // 3))
def test_applying_a_stream_again_changes_nothing(history: History) -> None:
    world = live_through(history)
    before = codec.encode(world.fleet)
    for envelope, seq, now_ns in world.stream:
        assert apply(world.fleet, envelope, seq, now_ns) == []
    assert codec.encode(world.fleet) == before
