"""torch's library is loaded beside the import of Python modules, and no trace of how that was done stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchloom.cli.service import early_spawner
from torchloom.cli.service.early_spawner import EarlySpawner
from torchloom.home import Home

LOADED = """
import os, sys
from torchloom.spawner.early_library import load_beside
from torchloom.spawner.warm import thread_count
before = thread_count()
load_beside(thread_count)
assert thread_count() == before
assert "torch" not in sys.modules and "sympy" in sys.modules
assert "libtorch_cpu.so" in open("/proc/self/maps").read(), "nothing was loaded"
import torch
pid = os.fork()
if pid == 0:
    import threading
    names = []
    one = threading.Thread(target=lambda: names.append(threading.current_thread().name))
    one.start(), one.join()
    os._exit(0 if float(torch.arange(10).sum()) == 45 and names == ["Thread-1 (<lambda>)"] else 1)
assert os.waitpid(pid, 0)[1] == 0
"""
NOT_LOADED = """
from torchloom.spawner.early_library import load_beside
from torchloom.spawner.warm import thread_count
load_beside(thread_count)
assert thread_count() == 1
import torch
assert torch.ours
"""


def python(program: str, **env: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_the_library_is_loaded_and_its_thread_is_gone() -> None:
    pytest.importorskip("torch")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: there is nothing to load it beside")
    python(LOADED)


@pytest.mark.parametrize("library", ["absent", "garbage"])
def test_a_library_that_cannot_be_loaded_is_left_to_torch(tmp_path: Path, library: str) -> None:
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("ours = True\n")
    if library == "garbage":
        for name in ("libtorch_global_deps.so", "libtorch_cpu.so"):
            (tmp_path / "torch" / "lib" / name).write_text("garbage")
    python(NOT_LOADED, PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


@pytest.mark.parametrize("cores", [2, 64])
def test_a_stack_waits_for_the_library_only_where_cores_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    waited: list[object] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(early_spawner.select, "select", lambda *args: waited.append(args))
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        EarlySpawner(Home(tmp_path), process, tmp_path / "s", 99).wait_for_library()
    assert len(waited) == (cores == 2)


def test_a_spawner_that_ends_before_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(early_spawner, "LOADED_WITHIN_S", None)  # else a wait in vain would end, too
    reading, writing = os.pipe()
    with subprocess.Popen([sys.executable, "-c", ""], pass_fds=(writing,)) as process:
        os.close(writing)
        EarlySpawner(Home(tmp_path), process, tmp_path / "s", reading).wait_for_library()
    os.close(reading)
