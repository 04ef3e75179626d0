"""Line shards in a real directory: formats, exactly once, resize, states, plain DataLoaders."""

from __future__ import annotations

import gc
import json
import pickle
import weakref
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from torchloom.data import ShardedDataset
from torchloom.data.demo import main, make
from torchloom.data.shards.deal import Piece
from torchloom.errors import DataDamaged, NotFound, UsageError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "corpus"
    make(root, "jsonl", shards=7, lines=20, seed=3)
    return root


def number(line: Any) -> int:
    return int(line["id"])


def opened(root: Path, rank: int = 0, world: int = 1, **options: Any) -> ShardedDataset:
    return ShardedDataset(root, rank=rank, world=world, transform=number, **options)


def everything(root: Path) -> list[int]:
    return list(range(opened(root).lines))


def test_all_ranks_together_see_every_line_once_and_about_as_many_each(corpus: Path) -> None:
    parts = [list(opened(corpus, rank, 4)) for rank in range(4)]
    assert sorted(chain(*parts)) == everything(corpus)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_next_epoch_has_another_order(corpus: Path) -> None:
    dataset = opened(corpus, seed=4)
    first, second = list(dataset), list(dataset)
    assert dataset.epoch == 2 and first != second and sorted(first) == sorted(second)
    assert list(opened(corpus, seed=4)) == first
    assert list(opened(corpus, shuffle=False)) == everything(corpus)


def read(loader: Any, steps: int | None = None) -> list[int]:
    seen: list[int] = []
    for batch in islice(loader, steps):
        if loader.weight:
            seen += batch.tolist()
    return seen


def test_four_then_three_then_five_ranks_in_one_epoch(corpus: Path) -> None:
    seen: list[int] = []
    state: Any = None
    for world, steps in ((4, 5), (3, 4), (5, None)):
        states = []
        for rank in range(world):
            loader = opened(corpus, rank, world, seed=2).loader(3)
            if state is not None:
                loader.load_state_dict(state)
            seen += read(loader, steps)
            states.append(loader.state_dict())
        state = states[0]
    assert sorted(seen) == everything(corpus)


def test_ranks_that_are_not_in_step_give_the_states_of_all(corpus: Path) -> None:
    seen, states = [], []
    for rank in range(3):
        dataset = opened(corpus, rank, 3)
        lines = iter(dataset)
        seen += [next(lines) for _ in range(4 + 9 * rank)]
        states.append(dataset.state_dict())
    for rank in range(2):
        dataset = opened(corpus, rank, 2)
        with pytest.raises(UsageError, match="states of all ranks"):
            dataset.load_state_dict(states[0])
        dataset.load_state_dict(states)
        seen += list(dataset)
    assert sorted(seen) == everything(corpus)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_continues_exactly_whatever_the_data_workers_read_ahead(corpus: Path, workers: int) -> None:
    loader = opened(corpus, 1, 2, seed=6).loader(4, num_workers=workers)
    whole, states = [], []
    while loader.epoch < 2:
        for batch in loader:
            whole.append((batch.tolist(), loader.weight))
            states.append(loader.state_dict())
    for after in (1, 9, len(loader), len(whole) - 1):
        again = opened(corpus, 1, 2).loader(4)
        again.load_state_dict(json.loads(json.dumps(states[after - 1])))
        rest = []
        while again.epoch < 2:
            rest += [(batch.tolist(), again.weight) for batch in again]
        assert rest == whole[after:]


def test_all_ranks_step_as_often_and_the_weights_are_exact(corpus: Path) -> None:
    world, size = 3, 5
    loaders = [opened(corpus, rank, world).loader(size) for rank in range(world)]
    total = 0.0
    for batches in zip(*loaders, strict=True):
        lines = sum(len(batch) for batch, loader in zip(batches, loaders, strict=True) if loader.weight)
        total += sum(
            float(batch.float().mean()) * loader.weight / world * lines
            for batch, loader in zip(batches, loaders, strict=True)
        )
    assert total == pytest.approx(sum(everything(corpus)))


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_lines_in_the_loops_hands_can_be_named(corpus: Path, shuffle: bool) -> None:
    for rank in range(3):
        dataset = opened(corpus, rank, 3, seed=2, shuffle=shuffle)
        loader = dataset.loader(8)
        assert loader.indices() == []
        for step, batch in enumerate(loader):
            assert loader.indices() == (batch.tolist() if loader.weight else [])
            if step == 2:
                loader.load_state_dict(loader.state_dict())
                assert loader.indices() == []
    name, line = dataset.locate(50)
    assert json.loads((corpus / name).read_text().splitlines()[line])["id"] == 50
    with pytest.raises(UsageError, match="no line 1000 in"):
        dataset.locate(1000)


def test_another_batch_size_in_the_middle_loses_nothing(corpus: Path) -> None:
    loader = opened(corpus).loader(4, num_workers=1)
    seen: list[int] = []
    for step, batch in enumerate(loader):
        seen += batch.tolist()
        if step == 3:
            loader.set_batch_size(9)
    assert sorted(seen) == everything(corpus)


@pytest.mark.parametrize("taken", [1, 99], ids=["broken off", "whole"])
def test_a_loader_ends_with_its_last_reference(corpus: Path, taken: int) -> None:
    """Not by the garbage collector, see GlobalBatch."""
    gc.disable()
    try:
        loader = opened(corpus).loader(4, num_workers=1, persistent_workers=True)
        read(loader, taken)
        left = weakref.ref(loader)
        del loader
        assert left() is None
    finally:
        gc.enable()


def test_dropping_the_last_leaves_full_batches_only(corpus: Path) -> None:
    loaders = [opened(corpus, rank, 2).loader(8, drop_last=True) for rank in range(2)]
    for loader in loaders:
        assert [len(batch) for batch in loader] == [8] * len(loaders[0])


def test_a_plain_data_loader_reads_all_but_gives_no_state_with_workers(corpus: Path) -> None:
    dataset = opened(corpus)
    alone = DataLoader(dataset, batch_size=4)
    batches = iter(alone)
    taken = next(batches).tolist() + next(batches).tolist()
    again = opened(corpus)
    again.load_state_dict(dataset.state_dict())
    assert sorted(taken + list(again)) == everything(corpus)

    shared = opened(corpus)
    seen = [n for batch in DataLoader(shared, batch_size=4, num_workers=2) for n in batch.tolist()]
    assert sorted(seen) == everything(corpus)
    with pytest.raises(UsageError, match="read ahead"):
        shared.state_dict()


def test_text_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("één\r\ntwo\n\nlast".encode())
    (tmp_path / "b.txt").write_bytes(b"")
    assert list(ShardedDataset(tmp_path, shuffle=False)) == ["één", "two", "", "last"]


def test_windows_of_tokens(tmp_path: Path) -> None:
    make(tmp_path / "t", "tokens", shards=3, lines=4)
    loader = ShardedDataset(tmp_path / "t", window=9, stride=8, shuffle=False).loader(4)
    first = next(iter(loader))
    assert first.shape == (4, 9) and first.dtype == torch.int64
    assert torch.equal(first[0, -1], first[1, 0])
    with pytest.raises(UsageError, match="window"):
        ShardedDataset(tmp_path / "t")


def test_changed_and_missing_shards_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "c"
    make(root, "jsonl", shards=2, lines=10)
    shard = root / "shard-00001.jsonl"
    content = shard.read_bytes()
    dataset = ShardedDataset(root)
    shard.write_bytes(content.replace(b"loom", b"moon"))
    with pytest.raises(DataDamaged, match="does not match its index"):
        list(ShardedDataset(root, verify=True))
    shard.write_bytes(content[:-5])
    with pytest.raises(DataDamaged, match="bytes"):
        list(dataset)
    shard.unlink()
    with pytest.raises(DataDamaged, match="missing"):
        list(ShardedDataset(root))
    with pytest.raises(NotFound, match="no directory"):
        ShardedDataset(tmp_path / "nowhere")


def test_states_of_other_data_and_impossible_ones_are_refused(corpus: Path) -> None:
    loader = opened(corpus).loader(4)
    state = loader.state_dict()
    hostile = (
        {"fingerprint": "other"},
        {"consumed": 10**9},
        {"consumed": -1},
        {"dealt": [[99, 0, 1]]},
        {"dealt": [[0, 0, 10**9]]},
        {"dealt": ["abc"]},
        {"world": 10**9},
        {"world": 0},
        {"seed": "x"},
    )
    for change in hostile:
        with pytest.raises(UsageError):
            loader.load_state_dict({**state, **change})
    assert sorted(read(loader)) == everything(corpus)


def test_the_demo_is_the_same_each_time_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "x"), "--shards", "2", "--lines", "5"]) == 0
    assert make(tmp_path / "y", shards=2, lines=5).shards == make(tmp_path / "z", shards=2, lines=5).shards
    assert main([str(tmp_path / "x")]) == 2
    assert "not empty" in capsys.readouterr().err


def test_the_state_before_the_step_gives_the_batch_again(corpus: Path) -> None:
    loader = opened(corpus, 1, 3).loader(4)
    batches = iter(loader)
    next(batches)
    second = next(batches).tolist()
    again = opened(corpus, 1, 3).loader(4)
    again.load_state_dict(loader.state_dict(include_current=False))
    assert next(iter(again)).tolist() == second


def test_what_a_spawned_data_worker_gets_reads_the_same(corpus: Path) -> None:
    shards = opened(corpus).shards
    task = (5, 5, 0, Piece(1, 2, 9), None)
    first = shards.read(*task)
    assert pickle.loads(pickle.dumps(shards)).read(*task) == first and len(first) == 7


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"id": 2}\n{"id":\n')
    with pytest.raises(DataDamaged, match=r"a\.jsonl, line 3, is not JSON"):
        list(ShardedDataset(tmp_path, shuffle=False))
