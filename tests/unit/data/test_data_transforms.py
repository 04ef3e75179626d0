"""Transforms by name, changed while data workers read ahead: they hold from one batch on, on all ranks."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from torchloom.data import ElasticLoader, ShardedDataset, Transforms, live
from torchloom.data.demo import make
from torchloom.errors import UsageError


def plus(sample: int, by: int = 1) -> int:
    return sample + by


def times(sample: int, by: int = 10) -> int:
    return sample * by


def jitter(sample: int) -> float:
    return sample + random.random() / 2


def made(**options: Any) -> Transforms:
    return Transforms(plus=plus, times=times, jitter=jitter, **options)


def test_a_pipeline_is_a_list_of_names_with_arguments() -> None:
    transforms = made(active=["plus"])
    assert transforms(3) == 4 and transforms.get() == ["plus"] and transforms.known[0] == "plus"
    transforms.add("times", by=3)
    assert transforms(3) == 12 and transforms.get() == ["plus", {"times": {"by": 3}}]
    transforms.reorder(["times", "plus"])
    assert transforms(3) == 10
    transforms.add("times", before="plus")
    assert transforms.get() == ["times", "plus"], "one that is there is moved and given what is said now"
    transforms.remove("times")
    assert transforms.get() == ["plus"]
    transforms.set([])
    assert transforms(3) == 3 and transforms.text == ""
    for text in ("plus,times", '["plus", {"times": {"by": 3}}]', ""):
        transforms.set(text)
        assert transforms.text == text
    other = made()
    other.load_state_dict(transforms.state_dict())
    assert other.get() == []


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (["blur"], "no transform 'blur'"),
        ([3], "no transform '3'"),
        (["plus", "plus"], "named twice"),
        ("blur", "no transform 'blur'"),
        ("[plus", "is not JSON"),
        (3, "a list of names"),
        ({"plus": {}}, "a list of names"),
        ([{"plus": 3}], "not named"),
        ([{"plus": {"of": 3}}], "cannot be called so"),
        ([{"plus": {"by": float("nan")}}], "not plain values"),
        ([{"plus": {"by": "x" * 5000}}], "too long"),
        ([{"plus": {}, "times": {}}], "no transform"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(value: Any, why: str) -> None:
    transforms = made(active=["times"])
    with pytest.raises(UsageError, match=why):
        transforms.set(value)
    assert transforms.get() == ["times"]


def test_only_what_is_in_force_is_removed_or_reordered() -> None:
    transforms = made(active=["times"])
    with pytest.raises(UsageError, match="not in force"):
        transforms.remove("plus")
    with pytest.raises(UsageError, match="another order"):
        transforms.reorder(["plus"])
    with pytest.raises(UsageError, match="not in force"):
        transforms.add("plus", before="jitter")
    with pytest.raises(UsageError, match="is no transform"):
        Transforms({"not a name": plus})


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2, "prefetch_factor": 4}, {"persistent_workers": True}]
)
def test_a_change_holds_from_the_next_batch_on_whatever_was_read_ahead(options: dict[str, Any]) -> None:
    if "persistent_workers" in options:
        options = {**options, "num_workers": 1}
    per_rank = []
    for rank in range(2):
        transforms = made(active=["plus"])
        loader = ElasticLoader(
            list(range(60)), 8, shuffle=False, rank=rank, world=2, transforms=transforms, **options
        )
        seen = []
        for step, batch in enumerate(loader, start=1):
            seen.append(batch.tolist())
            if step == 2:
                transforms.set(["times", "plus"])
            if step == 4:
                transforms.remove("plus")
            if step == 5:
                transforms.set(["plus"])
                transforms.set(["times"])  # put back before the next batch: nothing happens
        per_rank.append(seen)
    together = [first + second for first, second in zip(*per_rank, strict=True)]
    asked = [list(range(start, min(start + 8, 60))) for start in range(0, 60, 8)]
    for step, (got, indices) in enumerate(zip(together, asked, strict=True), start=1):
        expected = [i + 1 if step <= 2 else i * 10 + 1 if step <= 4 else i * 10 for i in indices]
        assert got == expected, step


def test_samples_are_lost_or_repeated_by_no_change() -> None:
    transforms, seen = made(active=[]), []
    loader = ElasticLoader(
        list(range(101)), 10, seed=4, rank=0, world=1, transforms=transforms, num_workers=1
    )
    for step, batch in enumerate(loader):
        seen += loader.indices()
        assert (batch.tolist() == loader.indices()) == (not transforms.get() or step != 0)
        loader.batch.set(7 + step % 3)
    assert sorted(seen) == list(range(101))


def test_a_transform_draws_the_same_with_and_without_others() -> None:
    def drawn(*active: str, workers: int = 0) -> list[float]:
        loader = ElasticLoader(
            list(range(20)), 5, rank=0, world=1, transforms=made(active=active), num_workers=workers
        )
        return [value for batch in loader for value in batch.tolist()]

    alone = drawn("jitter")
    assert drawn("jitter", workers=2) == alone
    assert drawn("jitter", "plus") == [pytest.approx(value + 1) for value in alone]
    state = random.getstate()
    drawn("jitter")
    assert random.getstate() == state


def number(line: Any) -> int:
    return int(line["id"])


def test_line_shards_take_them_too(tmp_path: Path) -> None:
    make(tmp_path / "corpus", "jsonl", shards=3, lines=20)
    transforms = Transforms(number=number, plus=plus, times=times, active=["number"])
    loader = ShardedDataset(tmp_path / "corpus", transform=transforms, rank=0, world=1).loader(
        6, num_workers=2
    )
    for step, batch in enumerate(loader, start=1):
        assert batch.tolist() == [i * (10 if step > 2 else 1) for i in loader.indices()]
        if step == 2:
            transforms.add("times")
    transforms.set(["number"])
    plain = ShardedDataset(tmp_path / "corpus", transform=transforms, rank=0, world=1)
    assert sorted(plain) == list(range(plain.lines))


def test_a_global_batch_of_lines_changes_at_a_step_and_is_dealt_evenly(tmp_path: Path) -> None:
    make(tmp_path / "corpus", "jsonl", shards=3, lines=40)
    seen: list[int] = []
    for rank in range(2):
        dataset = ShardedDataset(tmp_path / "corpus", transform=number, rank=rank, world=2)
        loader = dataset.loader(4, num_workers=1)
        assert loader.batch.get() == 8
        for step, batch in enumerate(loader, start=1):
            seen += batch.tolist() if loader.weight else []
            assert loader.indices() == (batch.tolist() if loader.weight else [])
            if step == 3:
                loader.batch.set(12)
                assert loader.global_batch == 12 and loader.batch_in_hand == 8
                assert loader.state_dict(include_current=False)["step"] == 2
            assert loader.batch_in_hand == (8 if step <= 3 else 12)
        with pytest.raises(UsageError, match="a multiple of 2"):
            loader.batch.set(7)
    assert sorted(seen) == list(range(dataset.lines))


def test_a_batch_must_be_possible() -> None:
    loader = ElasticLoader(list(range(10)), 4, rank=0, world=2)
    for value in (1, True, "8", 2.5):
        with pytest.raises(UsageError):
            loader.batch.set(value)  # type: ignore[arg-type]
    assert loader.batch.get() == 4


def test_whoever_listens_is_told_of_the_first_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_things", {})
    monkeypatch.setattr(live, "_listeners", [])
    told: list[tuple[str, Any]] = []
    transforms = made()
    live.listen(lambda name, thing: told.append((name, thing)))
    loader = ElasticLoader(list(range(10)), 4, rank=0, world=1)
    evaluation = ElasticLoader(list(range(10)), 5, rank=0, world=1)
    assert told == [("transforms", transforms), ("batch_size", loader.batch), ("skipped_data", loader.skips)]
    assert live.current("batch_size") is loader.batch and live.current("other") is None
    del loader, told[:]
    import gc

    gc.collect()
    later = ElasticLoader(list(range(10)), 6, rank=0, world=1)
    assert (
        told == [("batch_size", later.batch), ("skipped_data", later.skips)] and evaluation.batch.get() == 5
    )


def test_it_reaches_spawned_data_workers() -> None:
    copied = pickle.loads(pickle.dumps(made(active=["times"])))
    assert copied.through(made(active=["plus"]).pipeline, 3) == 4
    loader = ElasticLoader(
        list(range(8)),
        4,
        rank=0,
        world=1,
        shuffle=False,
        transforms=made(active=["times"]),
        num_workers=1,
        multiprocessing_context="spawn",
    )
    assert torch.cat(list(loader)).tolist() == [10 * i for i in range(8)]
