"""Lines of shards that are left out: exactly those, in every world, after every restart."""

from __future__ import annotations

import json
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from torchloom.data import ShardedDataset, live
from torchloom.data.demo import make
from torchloom.data.shards.deal import Piece
from torchloom.data.shards.left_out import apart, first_places, places_of
from torchloom.data.shards.loader import ShardedLoader
from torchloom.data.skipping import MOST
from torchloom.errors import UsageError

WORLD, BATCH = 3, 2
LINES = 139
"""Of the dataset that `corpus` makes."""
EVERYTHING = list(range(LINES))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "corpus"
    index = make(root, "jsonl", shards=7, lines=20, seed=3)
    assert sum(shard.lines for shard in index.shards) == LINES
    return root


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_things", {})
    monkeypatch.setattr(live, "_listeners", [])


def opened(root: Path, rank: int, world: int, batch: int = BATCH, **options: Any) -> ShardedLoader:
    dataset = ShardedDataset(root, rank=rank, world=world, seed=2, transform=lambda line: int(line["id"]))
    return dataset.loader(batch, **options)


def read(loader: ShardedLoader, steps: int | None = None) -> list[list[int]]:
    """The lines of each step; one more batch than asked for is not taken."""
    return [batch.tolist() if loader.weight else [] for batch in islice(loader, steps)]


def counted(monkeypatch: pytest.MonkeyPatch, loader: ShardedLoader, steps: int) -> list[list[int]]:
    """The same with somebody who counts, one batch a step."""
    found: list[list[int]] = []
    monkeypatch.setattr(live, "_completed", lambda: len(found))
    for batch in loader:
        found.append(batch.tolist() if loader.weight else [])
        if len(found) == steps:
            break
    return found


def all_ranks(root: Path, world: int, batch: int, skip: str, state: Any = None) -> list[int]:
    found: list[int] = []
    steps = set()
    for rank in range(world):
        loader = opened(root, rank, world, batch)
        if state is not None:
            loader.load_state_dict(state)
        loader.skips.set(skip)
        own = read(loader)
        steps.add(len(own))
        found += chain(*own)
    assert len(steps) == 1, "all ranks step as often"
    return sorted(found)


def blamed(monkeypatch: pytest.MonkeyPatch, root: Path, first: int, last: int) -> tuple[str, list[int]]:
    """What leaves out these steps, equal on all ranks, and the lines they had."""
    texts: set[str] = set()
    lines: list[int] = []
    for rank in range(WORLD):
        loader = opened(root, rank, WORLD)
        taken = counted(monkeypatch, loader, last + 2)
        texts.add(loader.skips.with_steps(first, last))
        lines += chain(*taken[first - 1 : last])
    (text,) = texts
    return text, sorted(lines)


def test_the_batches_of_steps_are_named_alike_by_all_ranks(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, lines = blamed(monkeypatch, corpus, 5, 7)
    assert len(lines) == 3 * WORLD * BATCH
    kept = sorted(set(EVERYTHING) - set(lines))
    for world, batch in ((1, 4), (3, 2), (5, 3)):
        assert all_ranks(corpus, world, batch, text) == kept
        assert all_ranks(corpus, world, batch, text.replace("0:", "1:")) == EVERYTHING


@pytest.mark.parametrize("before", [0, 3, 4])
def test_a_rollback_leaves_them_out_and_nothing_else_in_any_world(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    text, lines = blamed(monkeypatch, corpus, 5, 7)
    earlier: list[int] = []
    states = []
    for rank in range(WORLD):
        loader = opened(corpus, rank, WORLD)
        earlier += chain(*read(loader, before))
        states.append(loader.state_dict())
    for world, batch in ((3, 2), (2, 2), (4, 5)):
        rest = all_ranks(corpus, world, batch, text, json.loads(json.dumps(states[0])))
        assert sorted(earlier + rest) == sorted(set(EVERYTHING) - set(lines))


def test_a_checkpoint_from_afterwards_goes_on_exactly_and_remembers_it_by_itself(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, lines = blamed(monkeypatch, corpus, 5, 7)
    whole: list[int] = []
    for rank in range(WORLD):
        loader = opened(corpus, rank, WORLD)
        read(loader, 4)
        loader.skips.set(text + ",1:0-30")
        read(loader, 3)
        state = json.loads(json.dumps(loader.state_dict()))
        rest, next_epoch = read(loader), read(loader)
        whole += chain(*rest)
        assert sum(map(len, next_epoch)) < LINES // WORLD - 5
        for said in ("before", "after", "never"):
            again = opened(corpus, rank, WORLD)
            if said == "before":
                again.skips.set(text + ",1:0-30")
            again.load_state_dict(state)
            if said == "after":
                again.skips.set(text + ",1:0-30")
            assert read(again) == rest and read(again) == next_epoch
            assert again.skips.get() == loader.skips.get()
    assert not set(whole) & set(lines)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_change_holds_from_the_next_batch_on_and_can_be_taken_back(corpus: Path, workers: int) -> None:
    order = list(chain(*read(opened(corpus, 0, 1))))
    loader = opened(corpus, 0, 1, 10, num_workers=workers)
    found: list[int] = []
    for number, batch in enumerate(loader):
        found += batch.tolist()
        if number == 0:
            loader.skips.set("0:15-40,0:100-120")
        if number == 3:
            loader.skips.set("0:100-120")
    assert found[:10] == order[:10] and not set(found[10:40]) & set(order[15:40])
    assert sorted(found) == sorted(order[:100] + order[120:])


def test_a_state_from_before_and_one_that_was_taken_back(corpus: Path) -> None:
    loader = opened(corpus, 0, 1, 10)
    old = loader.state_dict()
    del old["skips"]  # as an earlier version wrote it
    loader.load_state_dict(old)
    loader.skips.set("0:0-50")
    read(loader, 2)
    with_skips = loader.state_dict()
    again = opened(corpus, 0, 1, 10)
    again.skips.set("")  # somebody wants none, whatever the state says
    again.load_state_dict(with_skips)
    assert sum(map(len, read(again))) == LINES - 20
    for wrong in (7, "x", "0:9-3"):
        with pytest.raises(UsageError):
            again.load_state_dict({**with_skips, "skips": wrong})


def test_a_whole_epoch_can_be_left_out(corpus: Path) -> None:
    loader = opened(corpus, 1, 2)
    loader.skips.set(f"0:0-{LINES}")
    assert read(loader) == [] and loader.epoch == 1
    assert sum(map(len, read(loader))) == LINES // 2


def test_too_many_are_not_named_and_the_data_goes_on(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = opened(corpus, 0, 1)
    counted(monkeypatch, loader, 12)
    apart_from_each_other = ",".join(f"9:{n}-{n + 1}" for n in range(0, 2 * MOST, 2))
    loader.skips.set(apart_from_each_other)
    assert loader.skips.with_steps(1, 2) == apart_from_each_other


def test_pieces_are_cut_where_places_are_left_out() -> None:
    fresh = [Piece(2, 0, 10), Piece(0, 0, 5), Piece(1, 0, 8)]
    kept, out = apart([Piece(2, 4, 10), Piece(1, 0, 8)], fresh, ((0, 5), (8, 16), (20, 99)))
    assert kept == [Piece(2, 5, 8), Piece(1, 1, 5)]
    assert out == [Piece(2, 4, 5), Piece(2, 8, 10), Piece(1, 0, 1), Piece(1, 5, 8)]
    assert places_of([*kept, Piece(0, 1, 2)], first_places(fresh)) == [(5, 8), (16, 20), (11, 12)]
