"""A server that falls behind and stays there is noticed; one that catches up is left alone."""

from __future__ import annotations

from torchloom.weaver.own_copy import OwnCopy


def test_a_copy_that_comes_no_nearer_is_stuck() -> None:
    copy = OwnCopy()
    copy.look(0, 1.0)
    assert copy.stuck_s(5.0) == 0.0
    copy.look(3, 10.0)
    copy.look(7, 12.0)
    copy.look(7, 14.0)
    assert copy.stuck_s(15.0) == 5.0


def test_a_copy_that_catches_up_is_not() -> None:
    copy = OwnCopy()
    for now_s, behind in enumerate((900, 800, 820, 700, 10, 1)):
        copy.look(behind, float(now_s))
        assert copy.stuck_s(float(now_s)) <= 1.0
    copy.look(0, 9.0)
    assert copy.stuck_s(99.0) == 0.0
