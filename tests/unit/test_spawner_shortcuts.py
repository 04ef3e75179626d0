"""Faster warming: shortcuts give equal results, are gone afterwards, and a bad cache is harmless."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchloom.spawner.compiled_texts import CompiledTexts
from torchloom.spawner.import_shortcuts import shortcuts

TEXT = "def double(x):\n  return 2 * x"


def code_runs(texts: CompiledTexts) -> bool:
    names: dict[str, object] = {}
    exec(texts.code(TEXT), {}, names)
    double = names["double"]
    assert callable(double)
    return bool(double(4) == 8)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one text."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "cache" / "texts.bin"
    texts = CompiledTexts(path)
    texts.code(TEXT)
    texts.save()
    return path


def knows(path: Path) -> bool:
    """Whether a new reader has the code without compiling it: then there is nothing to save."""
    before = path.lstat().st_ino
    texts = CompiledTexts(path)
    assert code_runs(texts)
    texts.save()
    return path.lstat().st_ino == before


def test_a_text_is_compiled_once_and_its_file_is_private(kept: Path) -> None:
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [one.name for one in kept.parent.iterdir()] == [kept.name]
    assert knows(kept)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "open to others", "a link"])
def test_a_damaged_file_is_not_used_but_replaced(kept: Path, damage: str) -> None:
    data = kept.read_bytes()
    match damage:
        case "cut":
            kept.write_bytes(data[:-5])
        case "flipped":
            kept.write_bytes(data[:-5] + bytes([data[-5] ^ 0xFF]) + data[-4:])
        case "empty":
            kept.write_bytes(b"")
        case "foreign":
            kept.write_bytes(b"something else entirely")
        case "open to others":
            kept.chmod(0o666)
        case "a link":
            kept.rename(kept.with_name("elsewhere"))
            kept.symlink_to(kept.with_name("elsewhere"))
    assert not knows(kept)
    assert knows(kept)  # it was replaced by a good one


def test_nothing_is_written_where_python_may_write_no_bytecode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    texts = CompiledTexts(tmp_path / "cache" / "texts.bin")
    texts.code(TEXT)
    texts.save()
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "file").write_text("")
    texts = CompiledTexts(tmp_path / "file" / "cache" / "texts.bin")
    assert code_runs(texts)
    texts.save()


def make_class() -> type:
    @dataclasses.dataclass(frozen=True, order=True)
    class Point:
        x: int
        y: list[int] = dataclasses.field(default_factory=list)

    return Point


def test_a_class_made_with_shortcuts_is_the_class_made_without(tmp_path: Path) -> None:
    plain = make_class()
    texts = CompiledTexts(tmp_path / "texts.bin")
    with shortcuts(texts):
        make_class()
        quick = make_class()
    assert repr(plain(1)) == repr(quick(1)) and quick(1) < quick(2) and quick(1) == quick(1)
    assert inspect.signature(plain) == inspect.signature(quick)
    for name in ("__init__", "__eq__", "__repr__", "__hash__", "__lt__", "__setattr__"):
        ours, theirs = getattr(quick, name), getattr(plain, name)
        assert ours.__code__ == theirs.__code__ and ours.__globals__ is theirs.__globals__
    with pytest.raises(dataclasses.FrozenInstanceError):
        quick(1).x = 2


def test_no_shortcut_is_left_behind_even_by_a_failing_import(tmp_path: Path) -> None:
    before = dict(vars(dataclasses)), dict(vars(inspect))
    with pytest.raises(ImportError), shortcuts(CompiledTexts(tmp_path / "texts.bin")):
        assert inspect.os is not os  # type: ignore[attr-defined]
        raise ImportError
    assert (dict(vars(dataclasses)), dict(vars(inspect))) == before


def test_a_path_is_resolved_as_usual(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.py").write_text("")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "b.py").symlink_to("a.py")
    paths = [f"{tmp_path}/{one}" for one in ("link/a.py", "link/b.py", "real/none.py", "link/", "link/..")]
    with shortcuts(CompiledTexts(tmp_path / "texts.bin")):
        seen = [inspect.os.path.realpath(one) for one in (*paths, "here.py")]  # type: ignore[attr-defined]
    assert seen == [os.path.realpath(one) for one in (*paths, "here.py")]


WARM = """
import gc, inspect, json, sys, threading
gc.disable()
if sys.argv[1] == "quick":
    from torchloom.spawner import warm
    warmth = warm.warm_up((), lambda: None, None, lambda: True)
    assert warmth.problem is None and not warmth.missing, warmth
    assert warm.thread_count() == 1 and threading.active_count() == 1
    assert threading.Thread().name == "Thread-1"
import torch, torch.distributed, torch.nn.parallel, torch._dynamo, dataclasses
fakes = torch._library.simple_registry.singleton._data
configs = (torch._dynamo.config, torch._inductor.config, torch._functorch.config)
print(json.dumps({
    "modules": sorted(one for one in sys.modules if one.partition(".")[0] in ("torch", "sympy", "numpy")),
    "operators": sorted(torch._C._dispatch_get_all_op_names()),
    "fakes": sorted((name, str(one.fake_impl.kernels and one.fake_impl.kernels[0].source))
                    for name, one in fakes.items()),
    "ignored": [sorted(one._compile_ignored_keys) for one in configs],
    "lazy": [type(vars(module).get("__loader__")).__name__ for module in (torch, torch._dynamo)],
    "exec": "exec" in vars(dataclasses),
    "os": type(inspect.os).__name__,
    "sum": torch.ones(3).sum().item(),
}))
"""


def test_what_is_warmed_is_what_a_plain_import_gives(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env |= {"XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def seen(how: str) -> dict[str, object]:
        command = [sys.executable, "-c", WARM, how]
        run = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=300)
        found: dict[str, object] = json.loads(run.stdout.splitlines()[-1])
        return found

    plain = seen("plain")
    assert plain["modules"] and plain["operators"] and plain["fakes"]
    assert seen("quick") == plain
