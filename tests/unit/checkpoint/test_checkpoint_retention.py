"""Keep rules: what goes, what stays, and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.core.retention import Candidate, KeepRules, judge


def one(step: int, generation: int = 0, **more: object) -> Candidate:
    return Candidate(f"step-{step}.g{generation}", generation, step, **{"whole": True, **more})  # type: ignore[arg-type]


def kept(candidates: list[Candidate], rules: KeepRules, *in_use: str) -> list[int]:
    wanted = {verdict.name for verdict in judge(candidates, rules, in_use) if verdict.keep}
    return sorted(candidate.step for candidate in candidates if candidate.name in wanted)


TEN = [one(step, metrics={"loss": abs(step - 40) / 10}) for step in range(10, 110, 10)]


def test_without_rules_everything_stays() -> None:
    assert len(kept(TEN, KeepRules())) == 10


def test_each_rule_keeps_its_own() -> None:
    assert kept(TEN, KeepRules(last=2)) == [90, 100]
    assert kept(TEN, KeepRules(last=1, every_steps=50)) == [50, 100]
    assert kept(TEN, KeepRules(last=1, best=2)) == [40, 50, 100]
    assert kept(TEN, KeepRules(last=1, best=1, best_is="highest")) == [100]
    assert kept(TEN, KeepRules(last=1), "step-30.g0") == [30, 100]
    assert kept([*TEN, one(5, pinned=True)], KeepRules(last=1)) == [5, 100]


def test_a_metric_that_is_no_number_is_never_best() -> None:
    odd = [one(1, metrics={"loss": float("nan")}), one(2, metrics={}), one(3, metrics={"loss": 9.0}), one(4)]
    assert kept(odd, KeepRules(last=1, best=1)) == [3, 4]


def test_when_the_numbers_broke_the_last_from_before_stay() -> None:
    broken = [one(step, finite=step < 50) for step in range(10, 110, 10)]
    assert kept(broken, KeepRules(last=2)) == [30, 40, 90, 100]
    assert kept([*broken, one(110)], KeepRules(last=2)) == [100, 110], "they are finite again"
    left = [one(step, finite=step < 50, resumable=step != 40) for step in range(10, 110, 10)]
    assert kept(left, KeepRules(last=1)) == [20, 30, 100]


def test_damaged_ones_count_for_nothing_and_the_newest_whole_one_stays() -> None:
    assert kept([one(1), one(2), one(3, whole=False)], KeepRules(last=1)) == [2, 3]
    assert kept([one(1), one(2, whole=False), one(3)], KeepRules(last=1)) == [3]
    assert kept([one(1, whole=False), one(2, whole=False)], KeepRules(last=1)) == [1, 2]
    assert kept([one(1), one(2, whole=False), one(3), one(4)], KeepRules(last=3)) == [1, 2, 3, 4]
    assert kept([one(1), one(2, whole=False), one(3), one(4)], KeepRules(last=2)) == [3, 4]
    assert kept([one(1, whole=False), one(2), one(3)], KeepRules(every_steps=2)) == [1, 2, 3], "no limit"


def test_a_branch_that_was_left_does_not_push_out_the_one_to_resume_from() -> None:
    late = one(90, generation=1, resumable=False)
    assert kept([one(10), late], KeepRules(last=1)) == [10, 90]


def test_senseless_rules_are_refused() -> None:
    for wrong in ({"last": 0}, {"every_steps": -1}, {"best": -1}):
        with pytest.raises(ValueError):
            KeepRules(**wrong)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.booleans(), st.booleans(), st.booleans())),
    st.integers(1, 5),
    st.integers(0, 7),
)
def test_the_state_to_resume_from_is_never_given_up(
    rows: list[tuple[int, int, bool, bool, bool]], last: int, every: int
) -> None:
    unique = {(s, g): one(s, g, whole=w, resumable=r, pinned=p) for s, g, w, r, p in rows}
    candidates = list(unique.values())
    verdicts = {
        verdict.name: verdict for verdict in judge(candidates, KeepRules(last=last, every_steps=every))
    }
    usable = [c for c in candidates if c.whole and c.resumable]
    if usable:
        assert verdicts[max(usable, key=lambda c: (c.generation, c.step)).name].keep
    assert all(verdicts[c.name].keep for c in candidates if c.pinned)
    assert all(verdict.reason for verdict in verdicts.values())
