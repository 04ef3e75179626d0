"""A fixture for tests of large states, small enough to be quick."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchloom.checkpoint.state import fresh_pages, staging


@pytest.fixture(autouse=True)
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under an agent, and any state counts as a large one. In force wherever it is imported."""
    for name in list(os.environ):
        if (name.startswith("LOOM_") and name != "LOOM_RESTORE_CHECK") or name in (
            "RANK",
            "WORLD_SIZE",
            "CHECKPOINT_DIR",
            "JOB_ID",
            "USE_S3",
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LOOM_MEMORY_DIR", str(tmp_path / "memory"))
    monkeypatch.setattr(fresh_pages, "INLINE", 0)
    monkeypatch.setattr(staging, "INLINE", 0)
