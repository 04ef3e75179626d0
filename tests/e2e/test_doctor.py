"""`loom doctor` with its self-test: a real job, a real SIGSTOP, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from stack import BIN, HANG_S

from torchloom.chaos import accelerator
from torchloom.probe import native

pytestmark = pytest.mark.timeout(900)


def doctor(tmp_path: Path, *words: str, **more: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and checks by name. Its processes know their temporary home: none may be left."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOOM_")}
    environment = kept | {"TMPDIR": str(scratch), "LOOM_HOME": str(tmp_path / "home"), "NO_COLOR": "1"} | more
    command = [str(BIN / "loom"), "doctor", "--json", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=4 * HANG_S)
    assert done.stdout, done.stderr
    assert not list(scratch.glob("loom-doctor-*")), "its home is removed"
    assert not _left(scratch)
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def _left(scratch: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("LOOM_HOME", "").startswith(str(scratch)):
                found.append(process)
        except psutil.Error:
            continue
    return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def built(*libraries: Any) -> None:
    for library in libraries:
        made = library.build()
        if made.library is None:
            pytest.skip(f"nothing to record with or on: {made.detail or made.outcome.value}")


@pytest.mark.parametrize(("device", "source"), [("cpu", "callback"), ("loomsim", "device-event")])
def test_the_self_test_sees_completions_waits_and_the_stopped_rank(device: str, source: str) -> None:
    built(native, accelerator) if device == "loomsim" else built(native)
    with tempfile.TemporaryDirectory(prefix="loom-e2e-") as root:
        _, checks = doctor(Path(root), "--device", device)
    for name in ("self-test", "…completions", "…waits", "…stopped rank", "…recovery"):
        assert checks[name]["state"] == "ok", checks[name]
    assert source in checks["…completions"]["found"]
    assert "rank 1 was named" in checks["…stopped rank"]["found"]


def test_what_the_sampling_recorder_does_not_see_is_said() -> None:
    """The worker's own LOOM_RECORDER counts, also where a warm spawner has loaded the other one."""
    built(native)
    with tempfile.TemporaryDirectory(prefix="loom-e2e-") as root:
        code, checks = doctor(Path(root), "--device", "cpu", LOOM_RECORDER="python")
    assert code == 1
    assert checks["…completions"]["state"] == checks["…waits"]["state"] == "limited"
    assert checks["…stopped rank"]["state"] == "ok", "a stopped process is named without any record"
    assert "not certain" in checks["…recovery"]["found"]
