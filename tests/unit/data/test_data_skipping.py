"""Samples that are left out: exactly those, on all ranks, whatever the batch."""

from __future__ import annotations

import random

import pytest

from torchloom.data import ElasticLoader, live
from torchloom.data.order import spans
from torchloom.data.skipping import SkippedRun, Skips, merged, parse
from torchloom.errors import UsageError


@pytest.fixture(autouse=True)
def _nobody_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of another test may still count steps in this process."""
    monkeypatch.setattr(live, "_completed", None)


def read(loader: ElasticLoader) -> list[int]:
    return [int(index) for _ in loader for index in loader.indices()]


def test_a_text_names_places_and_nonsense_is_refused() -> None:
    assert parse(" 0:8-16, 0:16-24,1:0-4 ") == (SkippedRun(0, 8, 24), SkippedRun(1, 0, 4))
    assert parse("") == ()
    for wrong in ("8-16", "0:16-8", "0:4-4", "x", "0:-1-4"):
        with pytest.raises(UsageError):
            parse(wrong)


def test_batches_go_around_what_is_left_out() -> None:
    chance = random.Random(3)
    for _ in range(300):
        length, size = chance.randrange(1, 60), chance.randrange(1, 9)
        raw = [SkippedRun(0, a, a + chance.randrange(1, 9)) for a in chance.sample(range(60), 3)]
        skips = [(run.start, run.stop) for run in merged(raw)]
        start = chance.randrange(length)
        found = [n for a, b in spans(length, start, size, False, skips) for n in range(a, b)]
        left_out = {n for a, b in skips for n in range(a, b)}
        assert found == [n for n in range(start, length) if n not in left_out]
        assert all(0 < b - a <= size for a, b in spans(length, start, size, False, skips))


@pytest.mark.parametrize("world", [1, 3])
def test_exactly_those_samples_are_missing_on_all_ranks(world: int) -> None:
    data = list(range(40))

    def all_of(skip: str) -> list[int]:
        found = []
        for rank in range(world):
            loader = ElasticLoader(data, 8, rank=rank, world=world)
            loader.skips.set(skip)
            found += read(loader)
        return sorted(found)

    whole = ElasticLoader(data, 8, rank=0, world=1)
    order = read(whole)
    assert all_of("") == data
    assert all_of("0:8-24") == sorted(order[:8] + order[24:])
    assert all_of("1:0-40") == data


def test_a_change_in_the_midst_of_an_epoch_takes_hold_from_the_next_batch_on() -> None:
    loader = ElasticLoader(list(range(40)), 8, rank=0, world=1)
    order = read(ElasticLoader(list(range(40)), 8, rank=0, world=1))
    found = []
    for number, _ in enumerate(loader):
        found += loader.indices()
        if number == 0:
            loader.skips.set("0:8-16,0:32-40")
    assert found == order[:8] + order[16:32] and (loader.epoch, loader.position) == (1, 0)


def test_the_batches_of_steps_are_known_while_they_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    monkeypatch.setattr(live, "_completed", lambda: made)
    loader = ElasticLoader(list(range(40)), 8, rank=0, world=1)
    for number, _ in enumerate(loader):
        made += number % 2  # two batches a step
    assert loader.skips.with_steps(2, 2) == "0:16-32"
    assert loader.skips.with_steps(7, 9) == ""
    loader.skips.set("0:0-8")
    assert loader.skips.with_steps(1, 2) == "0:0-32"


def test_what_is_not_a_step_of_ours_changes_nothing() -> None:
    skips = Skips()
    skips.note(0, 0, 8)
    assert skips.with_steps(5, 6) == "" and skips.of(0) == ()
