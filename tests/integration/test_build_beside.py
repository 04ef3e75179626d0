"""Native libraries that are compiled beside the jobs: once, at the lowest priority, and never left behind.

A script stands in for the compiler: the real one takes half a minute.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from loom_home import wait_for

from torchloom.probe import native
from torchloom.spawner.build_beside import BuildBeside

pytest.importorskip("torch")

COMPILER = """#!/bin/sh
[ "$1" = --version ] && { echo stand-in 1.0; exit 0; }
echo $$ >> "$(dirname "$0")/pids"
[ -e "$(dirname "$0")/slow" ] && sleep 600
for argument; do case "$argument" in -o*) echo library > "${argument#-o}";; esac; done
"""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kept = tmp_path / "native"
    monkeypatch.setenv("LOOM_NATIVE_DIR", str(kept))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.delenv("LOOM_RECORDER", raising=False)
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    return kept


def compiling(tmp_path: Path) -> list[psutil.Process]:
    """The compilers that have begun and not ended."""
    pids = tmp_path / "pids"
    found = []
    for pid in pids.read_text().split() if pids.exists() else ():
        if psutil.pid_exists(int(pid)) and psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE:
            found.append(psutil.Process(int(pid)))
    return found


def test_it_is_loaded_once_it_is_there(kept: Path) -> None:
    loaded: list[Path | None] = []
    build = BuildBeside(lambda: loaded.append(native.find()))
    build.begin()
    build.begin()
    while not loaded:
        build.look()
        time.sleep(0.02)
    build.look()
    assert loaded == [native.find()] and loaded[0] is not None
    assert {p.name.partition("-")[0] for p in kept.iterdir()} == {"copier", "lock", "recorder"}


def test_the_compiler_waits_for_everybody_else_and_ends_with_the_spawner(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    build = BuildBeside()
    build.begin()
    wait_for(lambda: bool(compiling(tmp_path)), "the compiler to begin")
    (compiler,) = compiling(tmp_path)
    assert os.sched_getscheduler(compiler.pid) == os.SCHED_IDLE and compiler.nice() == 19
    assert Path(f"/proc/{compiler.pid}/oom_score_adj").read_text().strip() == "1000"
    build.end()
    assert not compiling(tmp_path)
    assert [p.name for p in kept.iterdir()] == ["lock"], "what it had written is gone"


def test_a_killed_spawner_takes_it_along(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    code = (
        "import time; from torchloom.spawner.build_beside import BuildBeside; BuildBeside().begin(); "
        "time.sleep(600)"
    )
    spawner = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: bool(compiling(tmp_path)), "the compiler to begin")
    spawner.send_signal(signal.SIGKILL)
    spawner.wait()
    wait_for(lambda: not compiling(tmp_path), "the compiler to end")
    wait_for(lambda: [p.name for p in kept.iterdir()] == ["lock"], "what it had written to be removed")


@pytest.mark.parametrize("name, value", [("LOOM_BUILD", "0"), ("CXX", "no-such")])
def test_nothing_is_compiled_that_nobody_wants_or_can_have(
    kept: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    build = BuildBeside(lambda: pytest.fail("nothing was built"))
    build.begin()
    build.look()
    build.end()
    assert not kept.exists()


def loom_run(script: Path, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "torchloom.cli", "run", str(script)],
        env={**os.environ, "LOOM_HOME": str(home), "NO_COLOR": "1", **env},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_loom_run_compiles_it_before_the_first_job(kept: Path, tmp_path: Path) -> None:
    """A job keeps the recorder that it began with."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nprint('libraries', sorted(n[:6] for n in os.listdir(os.environ['KEPT'])))\n"
    )
    line = "compiling the native recorder for torch"
    first = loom_run(script, tmp_path / "home", KEPT=str(kept))
    assert first.returncode == 0 and first.stderr.count(line) == 1, first.stderr
    assert "libraries ['copier', 'lock', 'record']" in first.stdout
    assert line not in loom_run(script, tmp_path / "home", KEPT=str(kept)).stderr


@pytest.mark.parametrize("setting", [{"LOOM_BUILD": "0"}, {"LOOM_RECORDER": "python"}, {"CXX": "no-such"}])
def test_loom_run_compiles_nothing_that_nobody_wants(
    kept: Path, tmp_path: Path, setting: dict[str, str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('ran')\n")
    done = loom_run(script, tmp_path / "home", **setting)
    assert done.returncode == 0 and "ran" in done.stdout and "compiling" not in done.stderr, done.stderr
    assert not kept.exists()


def test_a_compiler_that_fails_costs_a_line(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "compiler").write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "x.h: error: no luck" >&2\nexit 1\n'
    )
    script = tmp_path / "script.py"
    script.write_text("print('ran')\n")
    done = loom_run(script, tmp_path / "home")
    assert done.returncode == 0 and "ran" in done.stdout
    assert "native recorder not built: x.h: error: no luck" in done.stderr
