"""While a weaver starts it leaves one of few cores to the import of torch, and takes all back afterwards."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from torchloom.cli.service.free_core import FreeCore


@pytest.fixture
def two_cores() -> Iterator[set[int]]:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("this host has one core")
    chosen = set(sorted(before)[:2])
    os.sched_setaffinity(0, chosen)
    yield chosen
    os.sched_setaffinity(0, before)


def test_one_core_less_until_the_start_is_over(two_cores: set[int]) -> None:
    cores, asked, seen = FreeCore(), threading.Event(), []
    cores.leave()
    assert os.sched_getaffinity(0) == {max(two_cores)}

    def wait() -> None:
        asked.wait()
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=wait)
    thread.start()
    cores.use_all()
    asked.set()
    thread.join()
    assert os.sched_getaffinity(0) == two_cores and seen == [two_cores], "every thread"


def test_a_single_core_is_not_left(two_cores: set[int]) -> None:
    os.sched_setaffinity(0, {min(two_cores)})
    cores = FreeCore()
    cores.leave()
    assert os.sched_getaffinity(0) == {min(two_cores)}
    os.sched_setaffinity(0, two_cores)
    cores.use_all()
    assert os.sched_getaffinity(0) == two_cores, "what it did not change stays"
