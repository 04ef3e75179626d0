"""The cache of shards: whole or not there, bounded, shared; and the process that fills it, over real HTTP."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import http.server
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.data import ShardedDataset
from torchloom.data.demo import make
from torchloom.data.shards.cache import Cache
from torchloom.data.shards.fetcher import Fetcher
from torchloom.data.shards.index import Shard
from torchloom.errors import DataDamaged, HomeUnusable, NotFound, UsageError


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put(cache: Cache, content: bytes, fetched: list[bytes] | None = None, **options: Any) -> Path | None:
    def fetch() -> Iterator[bytes]:
        if fetched is not None:
            fetched.append(content)
        yield content[:3]
        yield content[3:]

    return cache.get(digest(content), len(content), fetch, **options)


def shards(cache: Cache) -> list[Path]:
    return [path for path in cache.root.iterdir() if path.suffix != ".lock"]


def test_a_shard_is_fetched_once_and_again_when_damaged(tmp_path: Path) -> None:
    cache, fetched = Cache(tmp_path / "c", 100), []
    path = put(cache, b"content", fetched)
    assert path is not None and path.read_bytes() == b"content"
    put(cache, b"content", fetched)
    assert len(fetched) == 1
    for damage in (b"kontent", b"con", b""):
        path.write_bytes(damage)
        assert put(cache, b"content", fetched) == path and path.read_bytes() == b"content"
    assert len(fetched) == 4 and shards(cache) == [path]


def test_what_was_unused_for_longest_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 30)
    paths = [put(cache, bytes([n]) * 10) for n in range(3)]
    for age, path in enumerate(paths):
        assert path is not None
        os.utime(path, (age, age))
    put(cache, b"\0" * 10)  # used again
    put(cache, b"\3" * 10)
    assert sorted(path.read_bytes()[0] for path in shards(cache)) == [0, 2, 3]


def test_a_false_or_endless_or_broken_shard_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)

    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 10

    def broken() -> Iterator[bytes]:
        yield b"x"
        raise OSError(5, "Input/output error")

    for source in (endless, lambda: [b"short"], lambda: [b"y" * 50]):
        with pytest.raises(DataDamaged, match="does not match its index"):
            cache.get(digest(b"x" * 50), 50, source)
    with pytest.raises(HomeUnusable):
        cache.get(digest(b"x" * 50), 50, broken)
    assert shards(cache) == []
    with pytest.raises(UsageError, match="does not fit"):
        cache.get(digest(b""), 1001, endless)


def test_room_taken_by_living_writers_is_waited_for_and_that_of_dead_ones_is_not(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 10)
    (tmp_path / "part-dead").write_bytes(b"x" * 9)
    assert put(cache, b"content") is not None
    assert not (tmp_path / "part-dead").exists()

    part = tmp_path / "part-alive"
    part.write_bytes(b"x" * 9)
    with open(part) as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        assert put(cache, b"another", patient=False) is None
        waiting = threading.Thread(target=put, args=(cache, b"another"))
        waiting.start()
        time.sleep(0.1)
        assert waiting.is_alive()
    waiting.join(120)
    assert not waiting.is_alive() and [path.read_bytes() for path in shards(cache)] == [b"another"]


def test_many_at_once_fetch_once(tmp_path: Path) -> None:
    cache, fetched = Cache(tmp_path, 100), []
    readers = [threading.Thread(target=put, args=(cache, b"content", fetched)) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(120)
    assert len(fetched) == 1


def test_many_writers_never_trip_over_each_others_files(tmp_path: Path) -> None:
    """One counts the room while others finish, fail and take their files away."""
    cache, failed = Cache(tmp_path, 1 << 20), []

    def fetch_some(seed: int) -> None:
        try:
            for number in range(60):
                put(cache, f"{seed} and {number}".encode())
                with pytest.raises(DataDamaged):
                    cache.get(digest(b"%d" % number), 5, lambda: [b"wrong"])
        except HomeUnusable as error:
            failed.append(error)

    writers = [threading.Thread(target=fetch_some, args=(seed,)) for seed in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert failed == [] and len(shards(cache)) == 360


def test_an_unusable_directory_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeUnusable, match="cannot be used"):
        Cache(tmp_path / "file" / "c", 10)


# -- over the wire ------------------------------------------------------------------------------------------


class Quiet(http.server.SimpleHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """A dataset behind a real HTTP server: (address, its directory, what was asked for)."""
    root, asked = tmp_path / "served", []
    make(root, "jsonl", shards=4, lines=25)
    handler = type("Counting", (Quiet,), {"asked": asked})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(root))
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", root, asked
    server.shutdown()
    thread.join()
    server.server_close()


def read(address: str, cache: Path, workers: int = 0, **options: Any) -> list[int]:
    dataset = ShardedDataset(address, cache_dir=cache, transform=lambda line: int(line["id"]), **options)
    loader = dataset.loader(7, num_workers=workers)
    seen = [number for batch in loader for number in batch.tolist()]
    dataset.shards.close()
    assert sorted(seen) == list(range(dataset.lines))
    return seen


@pytest.mark.parametrize("workers", [0, 2])
def test_every_shard_travels_once_also_for_forked_data_workers(
    served: tuple[str, Path, list[str]], tmp_path: Path, workers: int
) -> None:
    address, root, asked = served
    cold = read(address, tmp_path / "cache", workers)
    assert sorted(asked) == ["/index.json", *(f"/{path.name}" for path in sorted(root.glob("*.jsonl")))]
    assert read(address, tmp_path / "cache", workers) == cold
    assert len(asked) == 6  # the index once more


def test_a_cache_of_one_shard_is_enough(served: tuple[str, Path, list[str]], tmp_path: Path) -> None:
    address, root, _ = served
    largest = max(path.stat().st_size for path in root.glob("*.jsonl"))
    read(address, tmp_path / "cache", cache_bytes=largest)
    with pytest.raises(UsageError, match="does not fit"):
        read(address, tmp_path / "cache", cache_bytes=largest - 1)


def test_failures_of_the_other_side_are_sentences(
    served: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    address, root, _ = served
    (root / "shard-00002.jsonl").write_bytes(b"x" * 10)
    with pytest.raises(DataDamaged, match="shard-00002"):
        read(address, tmp_path / "cache")
    (root / "index.json").unlink()
    with pytest.raises(NotFound, match="write one"):
        read(address, tmp_path / "cache")


def test_a_fetching_process_that_dies_is_noticed_and_replaced(
    served: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    address, root, _ = served
    fetcher = Fetcher(address, tmp_path / "cache", 1 << 20)
    content = (root / "shard-00000.jsonl").read_bytes()
    shard = Shard("shard-00000.jsonl", len(content), 0, digest(content))
    assert fetcher.get(shard).read_bytes() == content
    process = fetcher._process
    assert process is not None
    process.kill()
    process.wait()
    with pytest.raises(DataDamaged, match="has ended"):
        fetcher.get(shard)
    assert fetcher.get(shard).read_bytes() == content
    fetcher.close()


def test_the_fetching_process_ends_with_its_reader(
    served: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    code = (
        "import sys, time\nfrom torchloom.data.shards.fetcher import Fetcher\nfrom pathlib import Path\n"
        "f = Fetcher(sys.argv[1], Path(sys.argv[2]), 1 << 20)\nf.read('index.json', 1 << 20)\n"
        "print(f._process.pid, flush=True)\ntime.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    command = [sys.executable, "-c", code, served[0], str(tmp_path / "cache")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        fetching = os.pidfd_open(int(reader.stdout.readline()))
        reader.kill()
    try:
        assert select.select([fetching], [], [], 240)[0], "it still runs"
    finally:
        os.close(fetching)


def test_closing_does_not_wait_for_a_fork_that_holds_the_pipes(
    served: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    fetcher = Fetcher(served[0], tmp_path / "cache", 1 << 20)
    fetcher.read("index.json", 1 << 20)
    process = fetcher._process
    assert process is not None
    held, told = os.pipe()
    if (fork := os.fork()) == 0:  # a data worker that outlives its loader
        os.close(told)
        os.read(held, 1)
        os._exit(0)
    try:
        closing = threading.Thread(target=fetcher.close, daemon=True)
        closing.start()
        closing.join(240)
        assert not closing.is_alive() and process.poll() is not None
    finally:
        os.close(told)
        os.close(held)
        os.waitpid(fork, 0)
