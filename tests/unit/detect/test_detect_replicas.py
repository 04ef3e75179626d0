"""Replicas are learned from agreement; whoever leaves it is named, and whoever never agreed is let be."""

from __future__ import annotations

from collections.abc import Callable

from detect_windows import window

from torchloom.core.detect.replicas import ReplicaMemory, compare
from torchloom.model.findings import Finding
from torchloom.model.windows import PartHash

PARTS = 4
Hash = Callable[[int, int, int], int]
"""(rank, step, part) → hash"""


def play(
    ranks: int,
    hash: Hash,
    steps: range = range(10, 400, 10),
    table: Callable[[int], int] = lambda rank: 7,
    offset: int | None = None,
) -> list[tuple[int, Finding]]:
    """What is said after which step; two of the parts are looked at each time."""
    known, told = ReplicaMemory(), []
    for step in steps:
        parts = (step // 10 % PARTS, (step // 10 + 1) % PARTS)
        windows = [
            window(
                r,
                hashes=tuple(PartHash(step, table(r), p, PARTS, hash(r, step, p)) for p in parts),
                offset=offset,
            )
            for r in range(ranks)
        ]
        known, found = compare(windows, known)
        told += [(step, one) for one in found]
    return told


def alike(rank: int, step: int, part: int) -> int:
    return step * PARTS + part


def test_equal_replicas_are_let_be() -> None:
    assert play(2, alike) == [] and play(4, alike) == []


def test_a_rank_that_leaves_a_majority_is_named_and_soon_certain() -> None:
    told = play(4, lambda r, s, p: alike(r, s, p) + (r == 2 and s >= 200 and p == 1))
    first_step, first = told[0]
    assert first.ranks == (2,) and 200 <= first_step <= 240 and first.confidence >= 0.8
    assert told[-1][1].certain and told[-1][1].ranks == (2,) and told[-1][1].inputs["step"] == first_step
    assert "rank 2 on node b has other parameters than ranks 0, 1 and 3" in first.sentence
    assert not first.may_act
    later = play(4, lambda r, s, p: alike(r, s, p) + (r == 2 and s >= 200 and p == 1), offset=1000)
    assert later[0][1].sentence.endswith(f"since step {first_step + 1000}"), "as the script counts"


def test_of_two_ranks_both_are_named_and_nobody_is_blamed() -> None:
    told = play(2, lambda r, s, p: alike(r, s, p) + (r == 1 and s >= 200 and p == 1))
    assert told and told[0][1].ranks == (0, 1) and told[0][1].certain
    assert "ranks 0 and 1 had equal parameters and differ" in told[0][1].sentence
    assert "which of them is right is unknown" in told[0][1].sentence


def test_ranks_that_differ_from_the_start_are_no_replicas() -> None:
    assert play(2, lambda r, s, p: alike(r, s, p) + 10**6 * r) == []
    assert play(4, lambda r, s, p: alike(r, s, p) + 10**6 * r) == []
    adapter = play(4, lambda r, s, p: alike(r, s, p) + 10**6 * r * (p == 3))
    assert adapter == []


def test_ranks_that_train_by_themselves_between_averages_are_let_be() -> None:
    def averaged(every: int) -> Hash:
        return lambda r, s, p: alike(r, s, p) + (10**6 * r if s % every else 0)

    for ranks in (2, 3, 4):
        for every in (20, 30, 50, 80):
            assert play(ranks, averaged(every)) == [], (ranks, every)


def test_a_warm_up_in_step_before_that_changes_nothing() -> None:
    for ranks in (2, 3, 8):
        told = play(ranks, lambda r, s, p: alike(r, s, p) + (10**6 * r if s > 200 and s % 70 else 0))
        assert told == [], ranks


def test_parameters_that_start_equal_and_are_never_reduced_are_let_be() -> None:
    assert play(2, lambda r, s, p: alike(r, s, p) + 10**6 * r * (p == 0 and s > 10)) == []
    frozen = play(2, lambda r, s, p: 1 if p == 0 and s < 200 else alike(r, s, p) + 10**6 * r * (p == 0))
    assert frozen == []


def test_shards_are_compared_with_their_own_replicas() -> None:
    """Ranks 0, 2, 4 and 1, 3, 5 hold the two halves of every layer."""

    def halves(r: int, s: int, p: int) -> int:
        return alike(r, s, p) + 10**6 * (r % 2)

    assert play(6, halves) == []
    told = play(6, lambda r, s, p: halves(r, s, p) + (r == 3 and s >= 200 and p == 2))
    assert told and told[-1][1].ranks == (3,) and told[-1][1].certain


def test_stages_have_tables_of_their_own() -> None:
    told = play(
        6,
        lambda r, s, p: alike(r, s, p) + 10**6 * (r // 3) + (r == 5 and s >= 200 and p == 0),
        table=lambda r: r // 3,
    )
    assert told and {one.ranks for _, one in told} == {(5,)}


def test_what_is_equal_again_is_no_longer_said() -> None:
    told = play(4, lambda r, s, p: alike(r, s, p) + (r == 2 and s == 200 and p == 0))
    assert told and all(not one.certain for _, one in told) and told[-1][0] < 300


def test_only_steps_that_all_ranks_told_are_compared() -> None:
    known = ReplicaMemory()
    for step in range(10, 400, 10):
        windows = [
            window(r, hashes=tuple(PartHash(s, 7, 0, 1, s + r * (s % 20 > 0)) for s in told))
            for r, told in enumerate([(step,), (step - step % 20,)])
        ]
        known, found = compare(windows, known)
        assert found == []
