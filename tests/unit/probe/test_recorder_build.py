"""Building the native recorder: one line, no failure without a compiler, one build for several at once.

The real compiler is exercised by set-up and tests/e2e/test_recorder.py; it takes half a minute, so here a
script stands in for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchloom import compiled
from torchloom.checkpoint.native import COPIER
from torchloom.probe import native
from torchloom.probe.observe.operators import OPERATIONS
from torchloom.wire.blackbox import OPS

pytest.importorskip("torch")

COMPILER = """#!/bin/sh
[ "$1" = --version ] && { echo stand-in 1.0; exit 0; }
echo compiled >> "$(dirname "$0")/log"
for argument; do case "$argument" in -o*) echo library > "${argument#-o}";; esac; done
"""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kept = tmp_path / "native"
    monkeypatch.setenv("LOOM_NATIVE_DIR", str(kept))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    return kept


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "torchloom.probe.native"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_several_at_once_build_it_once(kept: Path, tmp_path: Path) -> None:
    (kept / "build-of-one-that-was-killed").mkdir(parents=True)
    kept.chmod(0o700)
    builders = [start() for _ in range(3)]
    told = sorted(builder.communicate(timeout=300)[0] for builder in builders)
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    assert sum("already there" in line for line in told) == 2
    assert sum(line.startswith("native recorder built: ") for line in told) == 1
    assert (tmp_path / "log").read_text().count("compiled") == 2, "the recorder and the copier"
    assert kept.stat().st_mode & 0o777 == 0o700
    library = native.find()
    assert library is not None
    copier = compiled.find(COPIER)
    assert copier is not None
    assert sorted(p.name for p in kept.iterdir()) == sorted(["lock", library.name, copier.name])

    library.chmod(0o722)
    assert native.find() is None, "writable by others"
    library.chmod(0o700)
    kept.chmod(0o777)
    assert native.find() is None, "others could put a library there"
    assert native.build().outcome is native.BuildOutcome.FAILED
    kept.chmod(0o700)
    assert native.find() == library


def test_a_library_of_root_is_loaded_and_one_of_somebody_else_is_not(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image, where root compiles and another user trains."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    assert native.build().library is not None
    library = native.find()
    assert library is not None
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    assert native.find() == library
    os.chown(library, 12345, 12345)
    assert native.find() is None
    os.chown(library, 10001, 10001)
    assert native.find() == library
    os.chown(kept, 12345, 12345)
    assert native.find() is None


def test_without_a_compiler_the_fallback_is_named(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    builder = start()
    told, _ = builder.communicate(timeout=240)
    assert builder.returncode == 0
    assert told.count("\n") == 1
    assert "no C++ compiler" in told and "Python fallback" in told


def test_a_compiler_that_fails_is_quoted(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'x.h: error: no such luck' >&2\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setenv("CXX", str(broken))
    result = native.build()
    assert (result.outcome, result.library) == (native.BuildOutcome.FAILED, None)
    assert "no such luck" in result.detail
    assert [p.name for p in kept.iterdir()] == ["lock"]


def test_every_operation_has_a_code() -> None:
    assert [operation.code for operation in OPERATIONS] == list(range(1, len(OPS)))
