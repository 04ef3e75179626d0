"""The delay matrix, and numbers that went wrong."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from detect_windows import SECOND, reduce, window

from torchloom.core.detect.matrix import delays_from_rings, judge_links
from torchloom.core.detect.window import GroupPosition


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
