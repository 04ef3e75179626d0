"""Line shards in a real S3 server: fetched once, resized in mid-epoch, through an outage, with wrong keys."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from s3 import S3Server

from torchloom.data import ShardedDataset
from torchloom.data.demo import make
from torchloom.data.shards.indexing import main as write_index
from torchloom.data.shards.source import open_source
from torchloom.errors import DataDamaged, NotFound

URI = f"s3://{S3Server.bucket}/corpus"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    home = tmp_path_factory.mktemp("s3")
    server = S3Server(home)
    server.start()
    make(home / "corpus", "jsonl", shards=8, lines=40)
    store = open_source(URI, server.environment)
    for path in (home / "corpus").iterdir():
        store.write(path.name, path.read_bytes())
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def _reached(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


def number(line: Any) -> int:
    return int(line["id"])


def opened(cache: Path, rank: int = 0, world: int = 1, **options: Any) -> ShardedDataset:
    return ShardedDataset(URI, cache_dir=cache, transform=number, rank=rank, world=world, **options)


def files(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if path.suffix != ".lock"}


def test_data_workers_fetch_into_one_cache_and_find_it_warm(tmp_path: Path) -> None:
    orders = []
    for _ in range(2):
        dataset = opened(tmp_path)
        orders.append([n for batch in dataset.loader(16, num_workers=2) for n in batch.tolist()])
        dataset.shards.close()
        assert files(tmp_path) == {shard.sha256 for shard in dataset.shards.index.shards}
    assert orders[0] == orders[1] and sorted(orders[0]) == list(range(dataset.lines))


def test_four_then_three_then_five_ranks_in_one_epoch(tmp_path: Path) -> None:
    seen: list[int] = []
    state: Any = None
    lines = 0
    for world, steps in ((4, 6), (3, 5), (5, None)):
        states = []
        for rank in range(world):
            dataset = opened(tmp_path, rank, world)
            lines, loader = dataset.lines, dataset.loader(4)
            if state is not None:
                loader.load_state_dict(state)
            for batch in islice(loader, steps):
                if loader.weight:
                    seen += batch.tolist()
            states.append(loader.state_dict())
            dataset.shards.close()
        state = states[-1]
    assert sorted(seen) == list(range(lines))


def test_an_outage_is_waited_out(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_STORE_TIMEOUT", "240")
    dataset = opened(tmp_path, cache_bytes=20_000)
    seen: list[int] = []
    back = threading.Thread(target=server.start)
    for step, batch in enumerate(dataset.loader(16)):
        seen += batch.tolist()
        if step == 1:
            server.kill()
            back.start()
    back.join()
    dataset.shards.close()
    assert sorted(seen) == list(range(dataset.lines))


def test_an_index_is_written_where_the_shards_are(tmp_path: Path) -> None:
    other = f"s3://{S3Server.bucket}/bare"
    open_source(other, os.environ).write("a.txt", b"one\ntwo\n")
    with pytest.raises(NotFound, match=r"torchloom\.data\.shards\.index"):
        ShardedDataset(other, cache_dir=tmp_path)
    assert write_index([other]) == 0
    dataset = ShardedDataset(other, cache_dir=tmp_path, shuffle=False)
    assert list(dataset) == ["one", "two"]
    dataset.shards.close()


def test_wrong_keys_are_a_sentence_without_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("S3_SECRET_KEY", "a-wrong-secret")
    with pytest.raises(DataDamaged, match="its keys") as caught:
        opened(tmp_path)
    assert "a-wrong-secret" not in str(caught.value) + "".join(capfd.readouterr())
