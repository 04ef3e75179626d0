"""A disk that was full and has room again: control comes back by itself, and trouble is shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import disks
import pytest
from disks import fill
from loom_home import LoomHome, wait_for

from torchloom.weaver.trouble import Troubles


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disks.small_disk(tmp_path / "small", megabytes=48) as place:
        yield place


def test_control_comes_back_by_itself_after_a_full_disk(small_disk: Path) -> None:
    loom = LoomHome(small_disk / "home")
    loom.loom("up", "--port", "0")
    try:
        loom.sleeper(name="before")

        def health() -> dict[str, object]:
            found: dict[str, object] = loom.request("GET", "/health")[2]
            return found

        assert health()["status"] == "ok" and health()["troubles"] == []

        def is_shown() -> object:
            fill(small_disk)
            return health()["troubles"]

        shown = wait_for(is_shown, "the trouble is in /health")
        assert "lease cannot be written" in str(shown)
        assert "lease cannot be written" in loom.loom("ps").stderr
        assert "lease cannot be written" in loom.loom("nodes").stderr
        began = time.monotonic()
        wanted = b'{"command": ["true"]}'
        status, _, body = loom.request("POST", "/jobs", wanted, Content_Type="application/json")
        assert status == 201 or (status in (503, 504) and body["detail"]), "a sentence, or it could be stored"
        assert time.monotonic() - began < 60
        (small_disk / "ballast").unlink()
        wait_for(lambda: health()["active"] and not health()["troubles"], "it leads again", timeout_s=120)
        loom.sleeper(name="after")
        loom.loom("stop", "before")
    finally:
        (small_disk / "ballast").unlink(missing_ok=True)
        loom.loom("down", "--stop-jobs")


def test_troubles_are_sentences_that_say_since_when() -> None:
    troubles = Troubles()
    troubles.begin("lease", "The lease cannot be written", 10.0)
    assert troubles.sentences(10.5) == [], "a moment is no trouble"
    troubles.begin("lease", "The lease cannot be written: no space", 12.0)
    assert troubles.sentences(22.0) == ["The lease cannot be written: no space (for 12 s)"]
    assert troubles.lasts_s("lease", 22.0) == 12.0
    troubles.end("lease", 25.0)
    assert troubles.sentences(30.0) == [] and troubles.lasts_s("lease", 30.0) == 0.0
