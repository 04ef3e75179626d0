"""Live rollback with real ranks: all go back to one state, or none does."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Forked
from stack import SCRIPTS

from torchloom.checkpoint.store.catalogue import list_checkpoints
from torchloom.checkpoint.store.storage import open_storage


@pytest.mark.parametrize(
    ("kind", "where"), [("ddp", "store"), ("fsdp", "store"), ("ddp", "memory"), ("fsdp", "memory")]
)
def test_a_run_that_was_rolled_back_ends_like_one_that_was_not(
    ranks: Forked, tmp_path: Path, kind: str, where: str
) -> None:
    script = SCRIPTS / "rollback.py"
    plain = ranks.lines(3, script, kind, str(tmp_path / "plain"), "plain", directory=tmp_path)
    rolled = ranks.lines(3, script, kind, str(tmp_path / "rolled"), where, directory=tmp_path)
    assert rolled[-1] == plain[-1]
    entries = list_checkpoints(open_storage(str(tmp_path / "rolled"), {}), "job")
    resumable = [entry.name for entry in entries if entry.resumable]
    # b1 was registered by the rollback that no rank made.
    if where == "memory":  # to step 11, which is in no store
        assert resumable == ["step-20.g0.b2", "step-15.g0.b2", "step-10.g0", "step-5.g0"]
    else:
        assert resumable == ["step-20.g0.b2", "step-15.g0.b2", "step-10.g0.b2", "step-5.g0"]
        assert [entry.name for entry in entries if not entry.resumable] == ["step-10.g0"]
