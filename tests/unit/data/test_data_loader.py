"""The elastic loader on torch's real DataLoader, with and without data workers."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from torchloom.data import ElasticLoader, sample_seed
from torchloom.errors import UsageError


class Numbers(Dataset):  # type: ignore[misc]
    """Sample i is (i, what the global generators drew for it)."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        return index, random.random(), float(torch.rand(()))


def ids(batch: Any) -> list[int]:
    found: list[int] = batch[0].tolist()
    return found


def epoch(loader: ElasticLoader) -> list[list[int]]:
    return [ids(batch) for batch in loader]


def test_the_global_batches_are_the_same_for_every_world() -> None:
    whole = epoch(ElasticLoader(Numbers(50), 8, seed=3))
    for world in (2, 3, 5):
        parts = [epoch(ElasticLoader(Numbers(50), 8, seed=3, rank=r, world=world)) for r in range(world)]
        full = [list(chain(*batch)) for batch in zip(*parts, strict=True)][:-1]
        assert full == whole[:-1]
    assert sorted(chain(*whole)) == list(range(50))


def test_a_rank_without_a_sample_steps_with_weight_nothing() -> None:
    weights, seen = [], []
    for rank in range(4):
        loader = ElasticLoader(Numbers(10), 4, rank=rank, world=4, shuffle=False)
        for batch in loader:
            last = (ids(batch), loader.weight, loader.indices())
        seen.append(last[0])
        weights.append(last[1])
    assert seen == [[8], [9], [8], [8]] and weights == [2.0, 2.0, 0.0, 0.0]
    assert last[2] == []


def test_weights_make_the_mean_over_ranks_the_mean_over_samples() -> None:
    value = torch.arange(7.0) ** 2
    total = 0.0
    for rank in range(3):
        loader = ElasticLoader(Numbers(7), 7, rank=rank, world=3)
        for batch in loader:
            total += float(value[batch[0]].mean()) * loader.weight / 3
    assert total == pytest.approx(float(value.mean()))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_the_state_counts_what_the_loop_took_and_not_what_was_read_ahead(options: dict[str, Any]) -> None:
    def stream() -> Iterator[Any]:
        loader = ElasticLoader(Numbers(20), 4, seed=1, **options)
        while loader.epoch < 2:
            for batch in loader:
                yield loader.state_dict(), [column.tolist() for column in batch]

    undisturbed = list(stream())
    assert len(undisturbed) == 10
    for stopped_after in (1, 5, 8):
        state, _ = undisturbed[stopped_after - 1]
        again = ElasticLoader(Numbers(20), 4, seed=99, **options)
        again.load_state_dict(state)
        rest = []
        while again.epoch < 2:
            rest.extend([column.tolist() for column in batch] for batch in again)
        assert rest == [batch for _, batch in undisturbed[stopped_after:]]


def test_a_state_taken_in_one_world_continues_in_another() -> None:
    whole = epoch(ElasticLoader(Numbers(40), 6, seed=5))
    states = []
    for rank in range(3):
        loader = ElasticLoader(Numbers(40), 6, seed=5, rank=rank, world=3)
        for _ in islice(loader, 2):
            pass
        states.append(loader.state_dict())
    assert states[0] == states[1] == states[2]
    parts = []
    for rank in range(2):
        loader = ElasticLoader(Numbers(40), 6, rank=rank, world=2)
        loader.load_state_dict(states[0])
        parts.append(epoch(loader))
    assert [list(chain(*batch)) for batch in zip(*parts, strict=True)] == whole[2:]


def test_an_epoch_saved_at_its_last_batch_still_ends_once() -> None:
    loader = ElasticLoader(Numbers(8), 4)
    state = {}
    for _ in loader:
        state = loader.state_dict()
    again = ElasticLoader(Numbers(8), 4)
    again.load_state_dict(state)
    assert again.epoch == 0 and list(again) == [] and again.epoch == 1


def test_the_state_before_the_step_gives_the_batch_again() -> None:
    loader = ElasticLoader(Numbers(20), 4)
    batch = next(iter(loader))
    again = ElasticLoader(Numbers(20), 4)
    again.load_state_dict(loader.state_dict(include_current=False))
    assert ids(next(iter(again))) == ids(batch)


@pytest.mark.parametrize("persistent", [False, True])
def test_the_batch_changes_inside_the_loop_without_loss(persistent: bool) -> None:
    loader = ElasticLoader(Numbers(30), 4, num_workers=2, persistent_workers=persistent)
    seen: list[int] = []
    for number, batch in enumerate(loader):
        seen += ids(batch)
        if number == 1:
            loader.set_global_batch(7)
        if number == 2:
            break
    for batch in loader:
        seen += ids(batch)
    assert sorted(seen) == list(range(30)) and loader.epoch == 1


def test_training_draws_the_same_numbers_whoever_loads() -> None:
    torch.manual_seed(1)
    alone = torch.rand(3).tolist()
    torch.manual_seed(1)
    drawn = [float(torch.rand(())) for _ in islice(ElasticLoader(Numbers(30), 4), 3)]
    assert drawn == alone


def test_a_sample_knows_its_seed() -> None:
    class Seeds(Numbers):
        def __getitem__(self, index: int) -> Any:
            return index, sample_seed()

    def seeds(loader: ElasticLoader) -> dict[int, int]:
        return dict(zip(*(column.tolist() for column in next(iter(loader))), strict=True))

    here, there = seeds(ElasticLoader(Seeds(4), 4)), seeds(ElasticLoader(Seeds(4), 4, num_workers=1))
    assert here == there and len(set(here.values())) == 4 and sample_seed() == 0


@pytest.mark.parametrize("taken", [1, 99], ids=["broken off", "whole"])
def test_a_loader_ends_with_its_last_reference(taken: int) -> None:
    """Not by the garbage collector, see GlobalBatch."""
    gc.disable()
    try:
        loader = ElasticLoader(Numbers(20), 4, num_workers=1, persistent_workers=True)
        for _ in islice(loader, taken):
            pass
        left = weakref.ref(loader)
        batch = loader.batch
        del loader
        assert left() is None
    finally:
        gc.enable()
    with pytest.raises(UsageError, match="is gone"):
        batch.get()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot feed"):
        ElasticLoader(Numbers(9), 2, rank=0, world=3)
    with pytest.raises(UsageError, match="decides sampler"):
        ElasticLoader(Numbers(9), 2, sampler=[1])
    loader = ElasticLoader(Numbers(9), 2)
    with pytest.raises(UsageError, match="length was 8"):
        loader.load_state_dict({**loader.state_dict(), "length": 8})
    with pytest.raises(UsageError, match="out of range"):
        loader.load_state_dict({**loader.state_dict(), "position": 10})
    with pytest.raises(UsageError, match="not the state"):
        loader.load_state_dict({})
    first = iter(loader)
    next(first)
    next(iter(loader))
    with pytest.raises(UsageError, match="another loop"):
        next(first)
