"""The table of finding kinds: a row for every kind, and no row that contradicts itself."""

from __future__ import annotations

from typing import get_args

from torchloom.model.finding_kinds import TRAITS, FindingKind


def test_every_kind_has_a_row_and_every_row_a_kind() -> None:
    assert list(TRAITS) == list(get_args(FindingKind))


def test_only_a_job_that_makes_no_step_is_ended_without_a_rule() -> None:
    for kind, traits in TRAITS.items():
        assert (traits.default == "restart") is traits.stuck, kind
        assert traits.default in ("report", "restart"), kind


def test_no_kind_has_traits_that_exclude_each_other() -> None:
    for kind, traits in TRAITS.items():
        assert traits.stuck + traits.numeric + traits.link + traits.from_events <= 1, kind
        assert not traits.blames_batches or traits.numeric, kind
        assert not traits.needs_probe or traits.link, kind


def test_every_kind_is_told_apart_from_the_others_in_words() -> None:
    assert len({traits.meaning for traits in TRAITS.values()}) == len(TRAITS)
