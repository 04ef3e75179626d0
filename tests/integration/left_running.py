"""Tests that start what lives on by itself, and never end. Not collected: test_interrupted.py runs them.

Each writes the pids that it knows of into the directory LEFT_RUNNING, and waits to be interrupted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from loom_home import LoomHome

SLEEP = ("sleep", "100000")


def wait_for_ever(name: str, *pids: int) -> None:
    notes = Path(os.environ["LEFT_RUNNING"])
    (notes / f"{name}.new").write_text(" ".join(map(str, pids)))
    (notes / f"{name}.new").rename(notes / name)
    while True:
        time.sleep(0.1)


@pytest.mark.xdist_group("stack")
def test_a_stack_with_a_job(tmp_path: Path) -> None:
    up = LoomHome(Path(os.environ["LEFT_RUNNING"]) / "home")
    up.loom("up", "--port", "0")
    job = up.sleeper()
    (worker,) = up.request("GET", f"/jobs/{job}")[2]["workers"]
    wait_for_ever(
        "stack", *(up.pid(part) for part in ("supervisor", "nats", "weaver", "agent")), worker["pid"]
    )


@pytest.mark.xdist_group("orphan")
def test_a_process_that_nobody_waits_for() -> None:
    """It has a session of its own, and its parent is gone."""
    code = f"import subprocess as s; print(s.Popen({SLEEP!r}, start_new_session=True, stdout=s.DEVNULL).pid)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    wait_for_ever("orphan", int(done.stdout))


@pytest.mark.xdist_group("orphan-server")
def test_a_server_that_is_given_next_to_no_environment_and_lost_its_parent() -> None:
    home = Path(os.environ["LEFT_RUNNING"]) / "nats"
    code = f"""
import pathlib
from torchloom.bus.embedded import EmbeddedNats
print(EmbeddedNats(pathlib.Path({str(home)!r}), "n1").start().pid)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    wait_for_ever("server", int(done.stdout))
