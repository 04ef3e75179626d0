"""The backup of docs/operations.md, restored into an empty home with a server that has never run."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loom_home import LoomHome, wait_for

ROOT = Path(__file__).parents[2]


@pytest.fixture
def user() -> Iterator[Path]:
    """A user's home directory, with a `.torchloom` in it."""
    with tempfile.TemporaryDirectory(prefix="loom-bk-") as root:
        yield Path(root)


def commands(title: str) -> list[str]:
    """The lines of the shell block under a heading of docs/operations.md."""
    page = (ROOT / "docs" / "operations.md").read_text()
    block = re.search(rf"^### {title}\n.*?```sh\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    assert block is not None, f"docs/operations.md has no commands under {title}"
    return [line.partition("  #")[0].strip() for line in block[1].splitlines()]


def say(loom: LoomHome, user: Path, title: str) -> None:
    """Run what the page says. Only `~` is another directory, and the port is any."""
    for line in commands(title):
        words = [word.replace("~", str(user)) for word in shlex.split(line)]
        if words[0] == "loom":
            loom.loom(*words[1:], *(("--port", "0") if words[1] == "up" else ()))
        else:
            subprocess.run(words, check=True, cwd=user)


def known(loom: LoomHome) -> dict[str, Any]:
    """What a person would miss."""

    def ask(path: str) -> Any:
        status, _, body = loom.request("GET", path)
        assert status == 200, (path, body)
        return body

    jobs = {job["id"]: job["state"] for job in ask("/jobs")}
    incidents = {one["id"]: (one["kind"], one["verdict"]) for one in ask("/incidents?job=fails")}
    drained = {one["id"]: one["drained"] for one in ask("/nodes")}
    return {
        "jobs": jobs,
        "incidents": incidents,
        "drained": drained,
        "devices": sorted((one["device"], one["node"]) for one in ask("/devices")["devices"]),
        "submitted": {
            job: (ask(f"/jobs/{job}")["submitted_at_ns"], ask(f"/jobs/{job}")["program"]) for job in jobs
        },
    }


def test_jobs_history_and_devices_are_back_in_an_empty_server(user: Path) -> None:
    first = LoomHome(user / ".torchloom", LOOM_NODE="n1")
    second = LoomHome(user / ".torchloom", LOOM_NODE="n1")
    try:
        first.loom("up", "--port", "0")
        first.loom(
            "submit", "--name", "fails", "--spawn", "cold", "--max-restarts", "0", "--no-python", "false"
        )
        wait_for(lambda: first.request("GET", "/jobs/fails")[2]["ended"], "it has failed")
        trains = first.sleeper()
        first.loom("node", "drain", "n1", "--keep", "--why", "before the backup")
        pid = first.request("GET", f"/jobs/{trains}")[2]["workers"][0]["pid"]
        say(first, user, "Back up the bus")
        assert first.request("GET", f"/jobs/{trains}")[2]["workers"][0]["pid"] == pid, "nobody noticed"
        before, events = known(first), first.loom("events", "fails").stdout
        assert before["jobs"] == {"fails": "failed", trains: "running"} and before["incidents"]
        assert "before the backup" in before["drained"]["n1"]

        say(second, user, "Restore the bus")
        wait_for(lambda: second.request("GET", "/health")[2]["active"], "it leads")
        after = known(second)
        assert after["jobs"].keys() == before["jobs"].keys() and after["jobs"]["fails"] == "failed"
        for key in ("incidents", "drained", "devices", "submitted"):
            assert after[key] == before[key], key
        assert second.loom("events", "fails").stdout == events
    finally:
        second.loom("down", "--stop-jobs")
    wait_for(lambda: not second.leftovers(), f"nothing left: {second.leftovers()}")
