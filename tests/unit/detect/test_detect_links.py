"""The delay matrix, and numbers that went wrong."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from detect_windows import window

from torchloom.core.detect.attribute import slower_job
from torchloom.core.detect.matrix import delays_from_training, judge_links
from torchloom.core.detect.slow import Trigger
from torchloom.core.detect.transfers import transfer_times
from torchloom.model.windows import GroupPosition, PairTimes, RankWindow, StepTimes


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


def sending(rank: int, send_ms: float, recv_ms: float, wait_ms: float = 0.0) -> RankWindow:
    """Ranks 4 and 9 are 0 and 1 of a group; 4 sends, 9 receives, twice a step."""
    me = 0 if rank == 4 else 1
    pair = PairTimes("pp", 1 - me, round(send_ms * 1e6), round(recv_ms * 1e6), 2)
    steps = tuple(StepTimes(n, round((20 + wait_ms) * 1e6), 0, round(wait_ms * 1e6)) for n in range(1, 9))
    return window(rank, pairs=(pair,), groups=(GroupPosition("pp", 2, me, 0, 0),), steps=steps)


def test_training_itself_shows_what_transfers_take() -> None:
    """The receiver was early by 3 ms; what the sender took is the transfer. Nobody sends the other way."""
    found = delays_from_training([sending(4, 1.0, 0.0), sending(9, 0.0, 4.0)])
    assert found == {(4, 9): pytest.approx(0.002)}
    assert delays_from_training([sending(4, 1.0, 0.0)]) == {}


def test_a_pipeline_whose_sends_became_slow_is_told_with_the_pair() -> None:
    before = transfer_times([sending(4, 1.0, 0.0), sending(9, 0.0, 4.0)])
    windows = [sending(4, 11.0, 0.0, 20), sending(9, 0.0, 14.0, 20)]
    slower = Trigger(alarmed=True, baseline_s=0.02, now_s=0.04, above=30)
    (found,) = slower_job(windows, slower, before)
    assert (found.kind, found.ranks) == ("communication-slow", (4, 9))
    assert "transfers from rank 4 to rank 9 take 20 ms longer" in found.sentence
    (alike,) = slower_job([sending(4, 1.0, 0.0, 20), sending(9, 0.0, 24.0, 20)], slower, before)
    assert alike.kind == "global-slowdown", "a stage that computes longer is no slow link"
