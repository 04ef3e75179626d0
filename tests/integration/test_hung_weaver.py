"""A weaver that lives and does nothing is replaced; a stack that died completely comes back where it was."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from loom_home import LoomHome, wait_for

BLOCKS_ON_SIGUSR2 = """
import signal, sys, time
if "weaver" in sys.argv or "torchloom.cli" in " ".join(sys.orig_argv) and "weaver" in sys.orig_argv:
    def block(number, frame):
        while True:
            time.sleep(1000)
    signal.signal(signal.SIGUSR2, block)
"""
"""In the main thread, where the event loop is: other threads of the process go on."""


@pytest.fixture
def home() -> Iterator[LoomHome]:
    with tempfile.TemporaryDirectory(prefix="loom-hung-") as root:
        (Path(root) / "site").mkdir()
        (Path(root) / "site" / "sitecustomize.py").write_text(BLOCKS_ON_SIGUSR2)
        loom = LoomHome(Path(root) / "home", LOOM_HUNG_AFTER_S="2", PYTHONPATH=f"{root}/site")
        try:
            yield loom
        finally:
            loom.loom("down", "--stop-jobs")
        wait_for(lambda: not loom.leftovers(), f"nothing left: {loom.leftovers()}")


def weaver(loom: LoomHome) -> tuple[int, int]:
    """Its pid, and its epoch as an answer shows it; 0 while there is none."""
    try:
        _, _, body = loom.request("GET", "/health")
    except OSError:
        return loom.pid("weaver"), 0
    return loom.pid("weaver"), int(body["active"] and body["ready"])


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGUSR2], ids=["stopped", "blocked"])
def test_a_weaver_that_hangs_is_replaced_and_the_job_notices_nothing(home: LoomHome, how: int) -> None:
    home.loom("up", "--port", "0")
    job = home.sleeper()
    before = home.request("GET", f"/jobs/{job}")[2]
    wait_for(lambda: weaver(home)[1], "it leads")
    hung = home.pid("weaver")
    os.kill(hung, how)
    wait_for(lambda: home.pid("weaver") not in (0, hung), "another weaver")
    wait_for(lambda: weaver(home)[1], "the new one leads")
    assert "it is restarted" in (home.home.logs_dir / "supervisor.log").read_text()
    after = home.request("GET", f"/jobs/{job}")[2]
    assert after["state"] == "running" and after["generation"] == before["generation"]
    assert [w["pid"] for w in after["workers"]] == [w["pid"] for w in before["workers"]]


def test_after_a_crash_of_everything_up_takes_the_former_port(home: LoomHome) -> None:
    home.loom("up", "--port", "0")
    plan = home.home.parts_dir / "plan.json"
    port = json.loads(plan.read_bytes())["port"]
    for part in ("supervisor", "weaver", "agent", "nats"):
        home.kill(part)
    assert f"http://127.0.0.1:{port} " in home.loom("up").stdout
    assert json.loads(plan.read_bytes())["port"] == port
    assert home.request("GET", "/health")[2]["ready"]
