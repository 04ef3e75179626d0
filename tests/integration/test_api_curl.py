"""The eleven classic calls, without prefix, done with plain curl on a real stack with a real process."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loom_home import LoomHome, wait_for

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.fixture(scope="module")
def loom() -> Iterator[LoomHome]:
    with tempfile.TemporaryDirectory(prefix="loom-curl-") as root:
        made = LoomHome(Path(root) / "home")
        made.loom("up", "--port", "0")
        try:
            yield made
        finally:
            made.loom("down", "--stop-jobs")
        wait_for(lambda: not made.leftovers(), f"nothing left: {made.leftovers()}")


def test_the_eleven_classic_calls_with_curl(loom: LoomHome) -> None:
    port = json.loads((loom.home.parts_dir / "plan.json").read_bytes())["port"]
    token = loom.home.token_file.read_text().strip()
    # The token goes through a file, because others can read a command line.
    config = loom.home.root / "curlrc"
    config.write_text(f'header = "Authorization: Bearer {token}"\n')

    def curl(method: str, path: str, body: object = None, expect: int = 200) -> Any:
        command = ["curl", "-sS", "-N", "--max-time", "240", "-K", str(config), "-X", method]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        command += ["-w", "\n%{http_code}", f"http://127.0.0.1:{port}{path}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        text, _, status = done.stdout.rpartition("\n")
        assert int(status) == expect, f"{method} {path}: {done.stdout}"
        return text if text.startswith(":") else json.loads(text) if text else None

    assert curl("GET", "/health")["status"] == "ok"
    talk = "for i in 1 2 3; do echo line $i; done; sleep 300"
    body = {"name": "curled", "command": ["sh", "-c", talk], "spawn": "cold", "world_size": 2}
    assert curl("POST", "/jobs", body, expect=201)["job"] == "curled"
    assert [job["id"] for job in curl("GET", "/jobs")] == ["curled"]
    assert curl("GET", "/jobs/summaries")[0]["world_size"] == 2
    wait_for(lambda: curl("GET", "/jobs/curled")["running_workers"] == 2, "both run")
    summary = curl("GET", "/jobs/curled/summary")
    assert summary["state"] == "running" and summary["replicas"][0]["running_workers"] == 2
    wait_for(lambda: "line 3" in curl("GET", "/jobs/curled/logs?rank=1")["logs"][0]["text"], "it spoke")
    curl("DELETE", "/jobs/curled", expect=409)
    curl("POST", "/jobs/curled/stop", {"grace_s": 1}, expect=202)
    wait_for(lambda: curl("GET", "/jobs/curled")["ended"], "it ends")
    stream = curl("GET", "/jobs/curled/logs/stream")
    assert stream.count("event: log") >= 2 and "line 3" in stream and "event: end" in stream
    logs = loom.home.jobs_dir / "curled"
    assert (logs / "rank-0.log").exists()
    curl("DELETE", "/jobs/curled", expect=204)
    wait_for(lambda: not logs.exists(), "its logs are gone")
    curl("GET", "/jobs/curled", expect=404)
    curl("POST", "/jobs", {"name": "short", "command": ["true"], "spawn": "cold"}, expect=201)
    wait_for(lambda: curl("GET", "/jobs/short")["ended"], "it ends")
    assert curl("POST", "/jobs/purge", {"older_than_s": 0, "dry_run": True})["jobs"] == ["short"]
    assert curl("POST", "/jobs/purge", {"older_than_s": 0})["jobs"] == ["short"]
    assert curl("GET", "/jobs") == []


def test_a_token_made_over_http_is_not_on_disk_and_not_in_any_command_line(loom: LoomHome) -> None:
    made = loom.request("POST", "/tokens", b'{"name": "grafana"}', Content_Type="application/json")[2]
    assert loom.request("GET", "/jobs", token=made["token"])[0] == 200
    assert loom.request("POST", "/jobs/purge", token=made["token"])[0] == 403
    main = loom.home.token_file.read_text().strip()
    assert (loom.home.tokens_file.stat().st_mode & 0o777) == 0o600
    secrets = (made["token"].encode(), main.encode())
    for path in loom.home.root.rglob("*"):
        if path.is_file() and path not in (loom.home.token_file, loom.home.root / "curlrc"):
            assert not any(secret in path.read_bytes() for secret in secrets), path
    assert not any(main in line for line in loom.processes())
    assert loom.request("DELETE", "/tokens/grafana")[0] == 204
