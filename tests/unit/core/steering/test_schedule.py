"""Which values hold at which step, after restarts and rollbacks."""

from __future__ import annotations

from itertools import permutations

import pytest

from torchloom.core.steering.schedule import (
    Entry,
    begin,
    in_force,
    merge,
    record,
    reverting,
    roll_back,
    version_at,
)
from torchloom.core.steering.schedule_codec import pack_schedule, unpack_schedule

FIRST = Entry(1, 10, {"lr": 0.1}, before={"optimizer0.lr@0": 1.0, "optimizer0.lr@1": 2.0}, by="ann")
SECOND = Entry(2, 20, {"lr@1": 0.2}, before={"optimizer0.lr@1": 0.1})
THIRD = Entry(3, 30, {"lr": 0.3, "dropout": 0.5}, before={"optimizer0.lr@0": 0.1, "optimizer0.lr@1": 0.2})
ALL = (FIRST, SECOND, THIRD)


def test_the_order_of_recording_does_not_matter_and_twice_is_once() -> None:
    for order in permutations(ALL):
        schedule: tuple[Entry, ...] = ()
        for entry in [*order, *order]:
            schedule = record(schedule, entry)
        assert schedule == ALL


def test_a_value_holds_from_its_step_on() -> None:
    assert [version_at(ALL, step) for step in (1, 9, 10, 19, 20, 29, 30, 99)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert in_force(ALL, 9) == ()


def test_a_wide_value_makes_the_narrow_ones_before_it_void() -> None:
    assert merge(ALL[:2]) == {"lr": 0.1, "lr@1": 0.2}
    assert merge(ALL) == {"lr": 0.3, "dropout": 0.5}
    narrow_first = (Entry(1, 1, {"lr@1": 0.2}), Entry(2, 2, {"lr": 0.1}), Entry(3, 3, {"lr@1": 0.4}))
    assert list(merge(narrow_first).items()) == [("lr", 0.1), ("lr@1", 0.4)]


def test_a_restart_begins_with_what_held_and_the_rest_follows() -> None:
    start = begin(ALL, 21)
    assert (start.version, start.values, start.following) == (2, {"lr": 0.1, "lr@1": 0.2}, (THIRD,))
    assert "version 3 follows at step 30" in start.reason
    assert begin(ALL, 5).values == {}
    assert begin((), 5).reason == "nothing is set before step 5"


def test_every_step_is_made_with_the_same_values_wherever_a_restart_begins() -> None:
    for restart in range(1, 40):
        start = begin(ALL, restart)
        for step in range(restart, 40):
            later = tuple(entry for entry in start.following if entry.step <= step)
            assert merge((Entry(0, 0, start.values), *later)) == merge(in_force(ALL, step))


def test_without_a_training_step_the_newest_holds_at_once_and_says_so() -> None:
    start = begin(ALL, None)
    assert (start.version, start.values, start.following) == (3, {"lr": 0.3, "dropout": 0.5}, ())
    assert "not known" in start.reason


def test_a_rollback_keeps_or_gives_up_what_came_later() -> None:
    assert roll_back(ALL, 15, "revert") == ((FIRST,), (SECOND, THIRD))
    schedule, left = roll_back(ALL, 15, "keep", Entry(4, 0, {}, by="bo", why="kept"))
    assert left == (SECOND, THIRD)
    assert schedule[-1] == Entry(4, 15, {"lr": 0.3, "dropout": 0.5}, by="bo", why="kept")
    assert merge(in_force(schedule, 15)) == merge(ALL)
    assert roll_back(ALL, 40, "keep") == (ALL, ())


def test_reverting_leads_back_to_what_each_place_held() -> None:
    own = {"own": True}
    third = Entry(3, 30, {"lr": 0.3, "dropout": 0.5}, before={**THIRD.before, "dropout": 0.1})
    schedule = (FIRST, SECOND, third)
    assert reverting(schedule, 2) == {"optimizer0.lr@0": 0.1, "optimizer0.lr@1": 0.2, "dropout": 0.1}
    assert reverting(schedule, 1) == {"optimizer0.lr@0": 0.1, "optimizer0.lr@1": 0.1, "dropout": 0.1}
    assert reverting(schedule, 0) == {"optimizer0.lr@0": own, "optimizer0.lr@1": own, "dropout": 0.1}
    assert reverting(schedule, 3) == {}


def test_a_schedule_that_is_too_long_is_merged_from_its_oldest_entries_on() -> None:
    long = tuple(Entry(n, n, {"lr": n / 1000, f"setting{n % 7}": n}) for n in range(1, 500))
    text = pack_schedule(long, 4000)
    assert len(text) <= 4000
    short = unpack_schedule(text)
    assert short[-1] == long[-1] and len(short) > 10
    for step in range(short[0].step, 510):
        assert merge(in_force(short, step)) == merge(in_force(long, step))
    assert unpack_schedule(pack_schedule(ALL)) == tuple(Entry(e.version, e.step, e.values) for e in ALL)
    assert unpack_schedule("") == ()
    with pytest.raises(ValueError, match="no schedule"):
        unpack_schedule('[{"version": 1}]')
    with pytest.raises(ValueError, match="does not fit"):
        pack_schedule(ALL, 10)
