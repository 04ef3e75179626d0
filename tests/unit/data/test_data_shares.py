"""Ranks that take fewer samples of a step: the samples and their weights stay what they were."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from torchloom.core.config.batch_shares import BatchShares, read_shares, write_shares
from torchloom.data import ElasticLoader, live
from torchloom.data.order import light_share, share
from torchloom.data.shares import ShareSetting
from torchloom.errors import UsageError


def test_a_text_names_ranks_and_nonsense_is_refused() -> None:
    assert read_shares("even") == BatchShares() and read_shares(" ") == BatchShares()
    assert read_shares("3:0.5,1:.25 of 4") == BatchShares(4, ((1, 250), (3, 500)))
    assert read_shares("0:1 of 2").light == ()
    for text in ("even", "3:0.5 of 4", "1:0.25,3:0.5 of 4"):
        assert write_shares(read_shares(text)) == text
    for wrong in ("3:0.5", "4:0.5 of 4", "1:0 of 4", "1:1.5 of 4", "1:0.5,1:0.4 of 4", "x", 3, None):
        with pytest.raises(UsageError):
            read_shares(wrong)


def test_every_sample_is_somebodys_and_shares_are_as_asked_to_the_nearest_sample() -> None:
    chance = random.Random(7)
    for _ in range(300):
        world, count = chance.randrange(1, 9), chance.randrange(0, 200)
        some = sorted(chance.sample(range(world), chance.randrange(world + 1)))
        light = tuple((rank, chance.randrange(1, 1000)) for rank in some)
        parts = [light_share(count, rank, world, light) for rank in range(world)]
        assert [n for a, b in parts for n in range(a, b)] == list(range(count))
        wanted = dict(light)
        whole = sum(wanted.get(rank, 1000) for rank in range(world))
        for rank, (a, b) in enumerate(parts):
            assert abs(b - a - Fraction(count * wanted.get(rank, 1000), whole)) <= 1
        if not light:
            assert parts == [share(count, rank, world) for rank in range(world)]


def loaders(world: int, samples: int, batch: int) -> list[ElasticLoader]:
    return [ElasticLoader(list(range(samples)), batch, rank=rank, world=world) for rank in range(world)]


def test_a_step_has_the_same_samples_with_the_same_weight_whatever_the_shares() -> None:
    """The mean over ranks of (mean over a rank's samples × its weight) is the mean over all samples."""
    ranks = loaders(4, 100, 16)
    taken: list[list[int]] = []
    for step, _ in enumerate(zip(*ranks, strict=True)):
        batch = [loader.indices() for loader in ranks]
        total = sum(map(len, batch))
        for loader, mine in zip(ranks, batch, strict=True):
            # weight / (ranks · samples of this rank) is what one sample counts.
            assert Fraction(loader.weight).limit_denominator(10_000) == Fraction(len(mine) * 4, total)
        taken.append([index for mine in batch for index in mine])
        text = {1: "3:0.5 of 4", 3: "0:0.25,3:0.5 of 4", 4: "even"}.get(step)
        if text is not None:
            for loader in ranks:
                ShareSetting(loader).set(text)
        if step == 2:
            assert [len(mine) for mine in batch] == [5, 4, 5, 2]
    whole = ElasticLoader(list(range(100)), 16, rank=0, world=1)
    assert taken == [whole.indices() for _ in whole]


def test_shares_of_another_world_are_kept_and_mean_nothing() -> None:
    loader = ElasticLoader(list(range(64)), 16, rank=3, world=4)
    ShareSetting(loader).set("3:0.5 of 4")
    next(iter(loader))
    assert len(loader.indices()) == 2
    loader.set_world(1, 2)
    next(iter(loader))
    assert len(loader.indices()) == 8
    assert ShareSetting(loader).get() == "3:0.5 of 4"


def test_shares_are_refused_where_the_script_does_not_weigh_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_things", {})
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = ElasticLoader(list(range(160)), 16)
    batches = iter(loader)
    next(batches)
    assert live.current("shares") is None
    with pytest.raises(UsageError, match=r"loader\.weight"):
        ShareSetting(loader).check("3:0.5 of 4")
    assert loader.weight == 1.0
    setting = live.current("shares")
    assert setting is not None and setting.check("3:0.5 of 4") == "3:0.5 of 4"
    next(batches)
    assert setting.check("3:0.5 of 4")  # before it takes the weight of the batch that it has just got
    next(batches)
    with pytest.raises(UsageError, match=r"loader\.weight"):
        setting.check("3:0.5 of 4")
    assert setting.check("even") == "even"
    with pytest.raises(UsageError, match="8 ranks"):
        assert loader.weight and setting.check("3:0.5 of 8")


def test_no_shares_where_the_ranks_of_the_loader_are_not_those_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "_things", {})
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = ElasticLoader(list(range(64)), 16, rank=1, world=2)  # of two model-parallel ranks each
    next(iter(loader))
    assert loader.weight == 1.0 and live.current("shares") is None
