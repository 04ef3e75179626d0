"""A callback when a module has been imported, without importing it and without changing the import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from torchloom.probe import frameworks
from torchloom.probe.guard import Guard
from torchloom.probe.import_watch import Arrivals


@pytest.fixture
def arrivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arrivals]:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loom_late.py").write_text("VALUE = 1\n")
    (tmp_path / "loom_bad.py").write_text(
        "import os\nif 'LOOM_FINE' not in os.environ: raise ImportError('not yet')\n"
    )
    watcher = Arrivals(Guard(lambda trips: None))
    yield watcher
    watcher.forget()
    for name in ("loom_late", "loom_bad"):
        sys.modules.pop(name, None)


def test_a_module_that_is_there_arrives_at_once(arrivals: Arrivals) -> None:
    seen: list[ModuleType] = []
    arrivals.expect("sys", seen.append)
    assert seen == [sys]
    assert arrivals not in sys.meta_path


def test_a_module_arrives_when_it_has_been_executed(arrivals: Arrivals) -> None:
    seen: list[int] = []
    arrivals.expect("loom_late", lambda module: seen.append(module.VALUE))
    assert "loom_late" not in sys.modules
    module = importlib.import_module("loom_late")
    assert seen == [1]
    assert arrivals not in sys.meta_path
    assert "exec_module" not in vars(module.__loader__)


def test_a_failed_import_fails_as_ever_and_the_next_one_arrives(
    arrivals: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ModuleType] = []
    arrivals.expect("loom_bad", seen.append)
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module("loom_bad")
    assert seen == []
    monkeypatch.setenv("LOOM_FINE", "1")
    module = importlib.import_module("loom_bad")
    assert seen == [module]


def test_a_module_that_does_not_exist_is_missed_as_ever(arrivals: Arrivals) -> None:
    arrivals.expect("loom_never", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("loom_never")


def test_a_failing_callback_does_not_break_the_import(arrivals: Arrivals) -> None:
    arrivals.expect("loom_late", lambda module: 1 / 0)
    assert importlib.import_module("loom_late").VALUE == 1


def test_every_integration_that_is_waited_for_exists() -> None:
    for integration in frameworks.ARRIVALS.values():
        assert importlib.util.find_spec(integration) is not None, integration
