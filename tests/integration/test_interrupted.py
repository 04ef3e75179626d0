"""Ctrl-C, or a kill, of the tests leaves nothing of theirs running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from loom_home import wait_for

from torchloom.agent.processes.process import is_alive, start_ticks

HERE = Path(__file__).resolve().parent


@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_whatever_tests_have_started_ends_with_them(how: signal.Signals) -> None:
    with tempfile.TemporaryDirectory(prefix="loom-left-") as notes, tempfile.TemporaryFile() as output:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "loadgroup"]
        tests = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", str(HERE / "left_running.py")],
            cwd=HERE.parents[1],
            env={n: v for n, v in os.environ.items() if not n.startswith("PYTEST")} | {"LEFT_RUNNING": notes},
            start_new_session=True,
            stdout=output,
            stderr=output,
            # Whoever starts the tests in the background lets them, and so us, ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            started = wait_for(lambda: known(Path(notes)) or tests.poll(), "all three tests have started")
            assert tests.poll() is None, (output.seek(0), output.read().decode())[1]
            assert all(is_alive(*one) for one in started) and len(started) == 7
            os.killpg(tests.pid, how)  # as a terminal does it: to pytest and to xdist's workers
            tests.wait(150)
            wait_for(lambda: not any(is_alive(*one) for one in started), f"nothing lives of {started}")
        finally:
            tests.kill()
            tests.wait()


def known(notes: Path) -> list[tuple[int, int]]:
    """Processes that all tests have named, with what tells them from later users of their numbers."""
    files = [notes / "stack", notes / "orphan", notes / "server"]
    if not all(file.exists() for file in files):
        return []
    pids = [int(word) for file in files for word in file.read_text().split()]
    return [(pid, start_ticks(pid) or 0) for pid in pids]
