"""The delay matrix, and numbers that went wrong."""

from __future__ import annotations

import random
from itertools import permutations
from math import inf, nan

import msgspec
import pytest
from detect_windows import SECOND, reduce, window

from torchloom.core.detect.matrix import delays_from_rings, judge_links, schedule
from torchloom.core.detect.numerics import Curves, broken_values, divergence, spikes
from torchloom.core.detect.window import GroupPosition


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_in_a_tournament_everybody_meets_once_and_nobody_twice_a_round(n: int) -> None:
    rounds = schedule(list(range(n)))
    met = [frozenset(pair) for one in rounds for pair in one]
    assert len(met) == len(set(met)) == n * (n - 1) // 2
    assert all(len({r for pair in one for r in pair}) == 2 * len(one) for one in rounds)


def delays(n: int, slow: dict[str, int | tuple[int, int]], seed: int = 0) -> dict[tuple[int, int], float]:
    chance = random.Random(seed)
    found = {}
    for a, b in permutations(range(n), 2):
        hit = slow.get("sender") == a or slow.get("receiver") == b or slow.get("link") == (a, b)
        found[a, b] = chance.lognormvariate(0, 0.1) * (8 if hit else 1)
    return found


@pytest.mark.parametrize("n", [4, 8, 16])
@pytest.mark.parametrize("seed", range(5))
def test_senders_receivers_and_links_are_told_apart(n: int, seed: int) -> None:
    assert [(f.kind, f.ranks) for f in judge_links(delays(n, {"sender": 2}, seed))] == [("sender-slow", (2,))]
    got = judge_links(delays(n, {"receiver": 1}, seed))
    assert [(f.kind, f.ranks) for f in got] == [("receiver-slow", (1,))]
    got = judge_links(delays(n, {"link": (3, 0)}, seed))
    assert [(f.kind, f.ranks) for f in got] == [("link-slow", (0, 3))]
    assert judge_links(delays(n, {}, seed)) == []


def test_two_ranks_cannot_tell_the_link_from_its_ends() -> None:
    (found,) = judge_links({(0, 1): 8.0, (1, 0): 1.0})
    assert found.kind == "communication-slow" and "either end" in found.sentence
    assert judge_links({(0, 1): 1.1, (1, 0): 1.0}) == []


def test_training_itself_fills_the_matrix() -> None:
    """The receiver was early by 3 s; the sender's second is the transfer."""
    sent = reduce(7, 3, op="send", group="pp", peer=1, finished_ns=998 * SECOND)
    got = reduce(7, 6, op="recv", group="pp", peer=0, finished_ns=998 * SECOND)
    windows = [
        window(4, collectives=(sent,), groups=(GroupPosition("pp", 2, 0, 0, 0),)),
        window(9, collectives=(got,), groups=(GroupPosition("pp", 2, 1, 0, 0),)),
    ]
    assert delays_from_rings(windows) == {(4, 9): 1.0 * SECOND}


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_broken_value_is_told_at_once(bad: float) -> None:
    (found,) = broken_values([window(0, values={"loss": 1.0}), window(1, values={"loss": bad})])
    assert found.kind == "not-a-number" and found.ranks == (1,) and found.certain
    (everywhere,) = broken_values([window(r, values={"loss": bad}) for r in range(2)])
    assert everywhere.ranks == ()
    assert broken_values([window(0, values={"loss": 1.0})]) == []


def curve(values: list[float]) -> list[int]:
    """Steps at which a spike is told."""
    curves, told = Curves(), []
    for step, value in enumerate(values, 1):
        curves, found = spikes(curves, step, {"loss": value})
        told += [step] * len(found)
    return told


def test_a_spike_is_told_and_a_falling_or_noisy_curve_is_not() -> None:
    chance = random.Random(1)
    falling = [2 + 8 / (1 + n / 20) + chance.gauss(0, 0.05) for n in range(300)]
    assert curve(falling) == []
    assert curve([*falling[:200], 12.0, *falling[200:]]) == [201]
    assert curve([chance.lognormvariate(0, 0.4) for _ in range(500)]) == []


def test_a_higher_level_becomes_the_usual_one() -> None:
    told = curve([*[1.0] * 50, *[3.0] * 200])
    assert told and told[-1] < 100


def test_a_loss_that_may_be_negative_is_left_alone() -> None:
    assert curve([*[-1.0, 1.0] * 30, 1000.0]) == []


def test_the_replica_that_differs_is_named() -> None:
    windows = [window(r, parameter_hash="10:a:x") for r in range(4)]
    assert divergence(windows) == []
    windows[2] = msgspec.structs.replace(windows[2], parameter_hash="10:a:y")
    (found,) = divergence(windows)
    assert found.ranks == (2,) and found.certain and not found.may_act


def test_other_shards_and_other_steps_may_differ() -> None:
    hashes = ["10:a:x", "10:b:y", "20:a:z", "20:b:w"]
    assert divergence([window(r, parameter_hash=h) for r, h in enumerate(hashes)]) == []
