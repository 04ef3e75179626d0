"""Which values hold at which step, after restarts and rollbacks."""

from __future__ import annotations

from itertools import permutations

import pytest

from torchloom.core.config.box_codec import pack_schedule, unpack_schedule
from torchloom.core.config.schedule import (
    Entry,
    begin,
    in_force,
    lay_over,
    merge,
    of_then,
    record,
    reverting,
    roll_back,
    superseded,
    version_at,
)

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
            holding = start.holding
            for entry in later:
                holding = lay_over(holding, entry)
            assert {name: value for name, (_, value) in holding.items()} == merge(in_force(ALL, step))


def test_without_a_training_step_the_newest_holds_at_once_and_says_so() -> None:
    start = begin(ALL, None)
    assert (start.version, start.values, start.following) == (3, {"lr": 0.3, "dropout": 0.5}, ())
    assert "not known" in start.reason


def test_a_rollback_keeps_or_gives_up_what_came_later() -> None:
    assert roll_back(ALL, 15, "revert") == (FIRST,)
    schedule = roll_back(ALL, 15, "keep", note="kept")
    assert [(entry.version, entry.step, entry.why) for entry in schedule] == [
        (1, 10, ""),
        (2, 15, "kept"),
        (3, 15, "kept"),
    ]
    assert merge(in_force(schedule, 15)) == merge(ALL)
    assert roll_back(ALL, 40, "keep") == ALL


def test_keeping_the_values_of_today_leaves_what_is_ahead_of_today_where_it_is() -> None:
    schedule = roll_back(ALL, 15, "keep", today=25)
    assert [(entry.version, entry.step) for entry in schedule] == [(1, 10), (2, 15), (3, 30)]


CRASHED = (Entry(2, 59, {"lr": 0.2}), Entry(1, 141, {"lr": 0.1}))
"""lr=0.1 was set at step 141, a crash put the job back to step 43, and lr=0.2 was set at step 59."""


def test_a_newer_change_supersedes_an_older_one_that_lies_ahead_after_a_crash() -> None:
    assert [merge(in_force(CRASHED, step)) for step in (58, 59, 140, 141, 500)] == [{}, *[{"lr": 0.2}] * 4]
    assert [version_at(CRASHED, step) for step in (58, 59, 141)] == [0, 2, 2]
    assert superseded(CRASHED) == {1: 2}
    assert begin(CRASHED, 60).following == ()
    assert superseded(ALL) == {}, "what was in use until a newer one came is not superseded"


def test_an_older_change_of_other_places_still_comes() -> None:
    schedule = (Entry(2, 59, {"lr@1": 0.2}), Entry(1, 141, {"lr": 0.1, "dropout": 0.5}))
    assert superseded(schedule) == {}
    assert merge(in_force(schedule, 141)) == {"lr": 0.1, "dropout": 0.5, "lr@1": 0.2}


@pytest.mark.parametrize("word", [{"own": True}, {"scale": 0.5}, 0.3])
def test_giving_a_value_back_or_scaling_it_supersedes_as_well(word: object) -> None:
    assert merge((*CRASHED, Entry(3, 70, {"lr": word}))) == {"lr": word}
    assert superseded((*CRASHED, Entry(3, 70, {"lr": word}))) == {1: 2}


def test_reverting_a_change_made_after_a_crash_leads_to_what_was_decided_before_it() -> None:
    assert reverting(CRASHED, {1}) == {"lr": 0.1}
    assert reverting(CRASHED, ()) == {"lr": {"own": True}}


def test_a_state_of_a_branch_that_was_left_has_the_settings_it_was_made_with() -> None:
    """The state after step 150 was saved before the crash, with version 1."""
    assert merge(of_then(CRASHED, 151, 1)) == {"lr": 0.1}
    assert merge(of_then(CRASHED, 151, 2)) == merge(of_then(CRASHED, 151, None)) == {"lr": 0.2}
    assert roll_back(CRASHED, 151, "revert", version=1) == CRASHED[1:]
    assert of_then(ALL, 20, 1) == ALL[:2], "what is due at the very next step was not used by then, either"


def test_reverting_leads_back_to_what_each_place_held() -> None:
    own = {"own": True}
    third = Entry(3, 30, {"lr": 0.3, "dropout": 0.5}, before={**THIRD.before, "dropout": 0.1})
    schedule = (FIRST, SECOND, third)
    assert reverting(schedule, {1, 2}) == {"optimizer0.lr@0": 0.1, "optimizer0.lr@1": 0.2, "dropout": 0.1}
    assert reverting(schedule, {1}) == {"optimizer0.lr@0": 0.1, "optimizer0.lr@1": 0.1, "dropout": 0.1}
    assert reverting(schedule, ()) == {"optimizer0.lr@0": own, "optimizer0.lr@1": own, "dropout": 0.1}
    assert reverting(schedule, {1, 2, 3}) == {}


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
