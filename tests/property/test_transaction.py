"""Histories of a hostile world against the transaction: what never happens, what always does in the end."""

from __future__ import annotations

import os
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transaction_history import SHARP_NAMES, History, live_through, sharp_history
from transaction_weights import MOST, WEIGHTS
from transaction_world import ACTIONS, World

NAMES = [name for name in ACTIONS for _ in range(WEIGHTS.get(name, 1))]
EXAMPLES = int(os.environ.get("LOOM_TEST_EXAMPLES", "150"))
calm_settings = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def moves(names: list[str], most: int) -> st.SearchStrategy[History]:
    return st.lists(st.tuples(st.sampled_from(names), st.integers(0, MOST - 1)), max_size=most)


@given(st.integers(1, 3), moves(NAMES, 80))
@calm_settings
def test_all_or_none_at_one_step_and_always_a_told_end(size: int, history: History) -> None:
    live_through(World(size), [("request", 1), *history])


@given(st.integers(2, 3), st.integers(0, MOST - 1), st.integers(0, 1), moves(SHARP_NAMES, 40))
@calm_settings
def test_whatever_happens_once_all_are_armed(size: int, what: int, where: int, history: History) -> None:
    live_through(World(size), [("request", what), ("hurry", where), *history])


def test_long_seeded_histories() -> None:
    """Hypothesis likes short histories; long ones find what needs many things to have gone wrong."""
    for seed in range(EXAMPLES // 7):
        chance = random.Random(seed)
        history = [(chance.choice(NAMES), chance.randrange(MOST)) for _ in range(300)]
        live_through(World(1 + seed % 3), history)


def test_sharp_seeded_histories() -> None:
    for seed in range(EXAMPLES):
        live_through(World(2 + seed % 2), sharp_history(seed))


@given(st.integers(1, 3), moves(NAMES, 60))
@calm_settings
def test_a_paused_job_goes_no_further_than_all_of_it_must(size: int, history: History) -> None:
    live_through(World(size, paused=True), [("request", 1), *history])


def test_sharp_seeded_histories_of_a_paused_job() -> None:
    for seed in range(EXAMPLES):
        live_through(World(2 + seed % 2, paused=True), sharp_history(seed))
