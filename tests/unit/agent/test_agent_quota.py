"""A CPU quota as a fault: set where the host lets us, else refused in words, and gone afterwards."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.agent.injection.quota import Quota
from torchloom.errors import Conflict


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process.pid
    process.kill()
    process.wait()


def group(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def test_a_process_is_put_under_a_quota_and_back(sleeper: int) -> None:
    before = group(sleeper)
    try:
        quota = Quota(sleeper, 25, "test")
    except Conflict as refusal:
        pytest.skip(str(refusal))
    assert "loom-fault-test" in group(sleeper)
    assert not quota.over
    assert quota.lift()
    assert group(sleeper) == before


def test_a_host_that_lets_us_not_is_told_of_with_a_way_out(sleeper: int, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="no CPU quota") as refusal:
        Quota(sleeper, 25, "test", root=tmp_path)
    assert "contention" in str(refusal.value.hint)


def test_a_worker_that_has_ended_is_let_be(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        quota = Quota(process.pid, 25, "test-ended")
    except Conflict as refusal:
        pytest.skip(str(refusal))
    finally:
        process.kill()
        process.wait()
    assert quota.over
    assert quota.lift(), "nothing of it is left"
