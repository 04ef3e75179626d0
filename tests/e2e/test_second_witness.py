"""torch's Flight Recorder is asked about a hang while the job lives; its word stands beside the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stack import Stack, wait_until

CALM = "dry_run = true\n"


def test_the_recorder_names_the_rank_that_the_detector_names(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(CALM)
    flags = ("--policy", str(tmp_path / "policy.toml"), "--hang-report", "3")
    job = stack.submit("monitored.py", str(tmp_path / "notes"), flags=flags)

    def hang() -> dict[str, Any] | None:
        told = [one for one in stack.json("incidents", job) if "Flight Recorder" in one["verdict"]]
        return stack.json("incident", told[0]["id"]) if told else None

    found = wait_until(hang, "the Flight Recorder has answered")
    assert found["finding"]["ranks"] == [1]
    assert found["witness"]["agrees"] is True
    assert found["verdict"].endswith("; torch's Flight Recorder agrees")
    assert "rank 1 has not entered all_reduce #31 of group 0" in found["witness"]["sentence"]
    assert found["witness"]["lines"][0].startswith("rank 0: in all_reduce #31 for ")
    shown = stack.loom("incident", found["id"]).stdout
    assert "witness    torch's Flight Recorder agrees: rank 1" in shown
    # The same dumps can be read by hand.
    place = stack.home.jobs_dir / job / "flight"
    read = stack.loom("analyze", str(place), "--json", check=1).stdout
    assert '"missing-rank"' in read
