"""A write to a log is noted when it happens: a real file, the kernel's own report."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from torchloom.agent.logs import times, watch
from torchloom.agent.logs.watch import LogWatch


async def noted(path: Path, size: int) -> None:
    """Wait until the log's size is noted; the test's own limit ends a wait for ever."""
    async with asyncio.timeout(60):
        while not times.marks(path, size - 1, size):
            await asyncio.sleep(0.005)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_every_write_after_the_other_is_noted(tmp_path: Path) -> None:
    async def story() -> None:
        found, path = LogWatch(), tmp_path / "rank-0.log"
        append(path, b"before\n")
        found.follow(path)
        found.follow(path)
        assert [size for size, _ in times.marks(path, 0, 7)] == [7], "what is there is noted at once"
        for size in range(9, 30, 2):
            append(path, b"x\n")
            await noted(path, size)
        sizes = [size for size, _ in times.marks(path, 0, 29)]
        assert sizes == [7, *range(9, 30, 2)], "each line has a time of its own"
        found.close()

    asyncio.run(story())


def test_logs_are_noted_apart_and_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        found, one, other = LogWatch(), tmp_path / "rank-0.log", tmp_path / "rank-1.log"
        for path in (one, other):
            append(path, b"a\n")
            found.follow(path)
        found.forget(one)
        found.forget(one)
        append(one, b"b\n")
        append(other, b"b\n")
        await noted(other, 4)
        assert times.marks(one, 2, 4) == [], "forgotten"
        found.follow(one)
        assert times.marks(one, 2, 4), "and followed again"
        found.close()

    asyncio.run(story())


def test_without_inotify_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        class Refuses:
            def inotify_init1(self, flags: int) -> int:
                return -1

        monkeypatch.setattr(watch, "_libc", Refuses())
        found = LogWatch()
        found.follow(tmp_path / "rank-0.log")
        found.forget(tmp_path / "rank-0.log")
        found.close()

    asyncio.run(story())


def test_a_log_that_is_gone_can_be_followed_later(tmp_path: Path) -> None:
    async def story() -> None:
        found, path = LogWatch(), tmp_path / "rank-0.log"
        found.follow(path)
        append(path, b"a\n")
        found.follow(path)
        assert times.marks(path, 0, 2)
        found.close()

    asyncio.run(story())
