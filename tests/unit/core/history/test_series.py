"""Bounded series: extremes survive every merge, memory is bounded, packing loses nothing."""

from __future__ import annotations

import math
from array import array

from hypothesis import given
from hypothesis import strategies as st

from torchloom.core.history.series import Lanes, unpack

DAY_S = 86_400


def test_a_day_at_full_width_is_bounded_and_keeps_a_spike_of_one_second() -> None:
    life = Lanes(1.0, 1024, halves=True)
    for second in range(DAY_S):
        life.add(1e9 + second, 50.0 if second == 30_000 else 1.0)
    assert life.buckets <= 1024
    found = life.read(0, 10_000)
    assert max(bucket.high for bucket in found) == 50.0
    assert min(bucket.low for bucket in found) == 1.0
    spike = next(bucket for bucket in found if bucket.high == 50.0)
    assert spike.at_s <= 1e9 + 30_000 < spike.at_s + life.width_s
    assert found[-1].at_s + life.width_s >= 1e9 + DAY_S - 1 and found[0].at_s <= 1e9


def test_what_is_recent_forgets_the_oldest() -> None:
    recent = Lanes(1.0, 60, halves=False)
    for second in range(1000):
        recent.add(second, float(second))
    found = recent.read(0, 1000)
    assert [b.mean for b in found] == [float(s) for s in range(940, 1000)]
    recent.add(50_000.0, 7.0)
    assert [b.mean for b in recent.read(0, 1000) if not math.isnan(b.mean)] == [7.0]
    recent.add(3.0, 1.0)  # a clock that was set back
    assert [b.mean for b in recent.read(0, 1000) if not math.isnan(b.mean)] == [7.0]


def test_nothing_recorded_is_no_zero() -> None:
    life = Lanes(1.0, 8, halves=True)
    life.add(0.0, 2.0)
    life.add(3.0, 4.0)
    assert [math.isnan(b.mean) for b in life.read(0, 100)] == [False, True, True, False]


def test_lanes_are_kept_apart_and_more_may_come() -> None:
    both = Lanes(1.0, 4, halves=True, lanes=2, extra=1)
    for second in range(10):
        both.add(second, 1.0, lane=0, extras=(0.5,), code=1)
        both.add(second, 2.0, lane=1, extras=(0.25,), code=3 if second == 1 else 1)
    both.widen(3)
    both.add(10, 9.0, lane=2, code=2)
    assert {b.mean for b in both.read(0, 9, 0) if not math.isnan(b.mean)} == {1.0}
    assert {b.mean for b in both.read(0, 9, 1) if not math.isnan(b.mean)} == {2.0}
    assert both.read(0, 9, 2)[-1].mean == 9.0
    assert both.read(0, 9, 1)[0].code == 3, "the highest code of a bucket is kept"
    assert both.read(0, 9, 0)[0].extras == (0.5,)


def test_a_matrix_keeps_the_highest_of_ranks_and_times() -> None:
    wide = Lanes(1.0, 64, halves=True, lanes=10)
    for second in range(40):
        for lane in range(10):
            wide.add(second, 99.0 if (second, lane) == (17, 7) else lane, lane=lane)
    whole = wide.matrix(wide.high, 0, 100, 100)
    assert len(whole) == 10 and len(whole[0]) == 40 and whole[7][17] == 99.0 and whole[3][5] == 3.0
    small = wide.matrix(wide.high, 0, 11, 5)
    assert len(small) == 5 and len(small[0]) <= 11
    assert max(small[3]) == 99.0 and sorted({v for row in small for v in row}) == [1, 3, 5, 7, 9, 99]


times = st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e3, 1e3)), min_size=1, max_size=60)


@given(times, st.integers(1, 40))
def test_extremes_are_never_lost_and_never_made_up(given: list[tuple[float, float]], most: int) -> None:
    life = Lanes(1.0, 16, halves=True)
    given = sorted((float(int(at)), array("f", [value])[0]) for at, value in given)
    for at, value in given:
        life.add(at, value)
    assert life.buckets <= 16
    for points in (most, 1000):
        found = [b for b in life.read(0, points) if not math.isnan(b.mean)]
        assert len(life.read(0, points)) <= max(2, points)
        assert min(b.low for b in found) == min(value for _, value in given)
        assert max(b.high for b in found) == max(value for _, value in given)
        assert all(b.low - 1e-3 <= b.mean <= b.high + 1e-3 for b in found)
    again = unpack(life.pack())
    before, after = life.read(0, 1000), again.read(0, 1000)
    assert repr(before) == repr(after)
