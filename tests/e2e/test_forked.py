"""Ranks that hang fail their own test, with their stacks, and no other."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from forked import Forked, Ranks
from forker import Hung
from stack import SCRIPTS, wait_until


@pytest.fixture
def stuck(ranks: Forked, tmp_path: Path) -> Ranks:
    """Two ranks: one waits for ever, one has ended."""
    said = tmp_path / "said"
    started = ranks.start(SCRIPTS / "never_ends.py", [[str(said)]] * 2, tmp_path)
    wait_until(lambda: said.exists() and said.read_text(), "one hangs")
    return started


def test_ranks_that_hang_are_killed_and_fail_with_their_stacks(stuck: Ranks) -> None:
    assert not stuck.over()
    with pytest.raises(Hung) as failure:
        stuck.printed(within_s=0.1)
    assert "stuck_for_ever" in str(failure.value)
    assert stuck.over()
    assert not psutil.pid_exists(stuck.pids[0])


def test_ranks_that_a_test_has_left_are_ended_before_the_next_start(
    stuck: Ranks, ranks: Forked, tmp_path: Path
) -> None:
    ended = tmp_path / "ended.py"
    ended.write_text("print('here')")
    assert ranks.lines(2, ended, directory=tmp_path) == ["here"]
    assert stuck.over()
    assert not psutil.pid_exists(stuck.pids[0])
