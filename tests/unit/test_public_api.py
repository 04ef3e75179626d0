"""The names a training script may rely on, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import torchloom

ROOT = Path(__file__).parents[2]


def test_the_public_names_are_these() -> None:
    assert sorted(torchloom.__all__) == [
        *(
            "Checkpoint",
            "ElasticLoader",
            "Info",
            "KeepRules",
            "ScaledRate",
            "ShardedDataset",
            "ShardedLoader",
        ),
        *("Transforms",),
        *("__version__", "attach", "handler", "in_force", "info", "log", "phase", "role", "setting", "step"),
    ]
    assert all(hasattr(torchloom, name) for name in torchloom.__all__)


def test_the_version_is_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert torchloom.__version__ == project["version"]


def test_importing_brings_neither_torch_nor_the_control_plane() -> None:
    code = "import sys, torchloom; print(sorted(sys.modules))"
    environment = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    loaded = {name.strip("'[], ").partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {
        "torch",
        "numpy",
        "fastapi",
        "nats",
        "msgspec",
        "typer",
        "asyncio",
        "multiprocessing",
    }


def test_names_come_when_they_are_asked_for_and_then_stay() -> None:
    code = """
import sys, torchloom
ours = {name for name in sys.modules if name.startswith("torchloom.")}
first, again = torchloom.step, torchloom.step
print(ours, first is again is vars(torchloom)["step"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set() True\n"


def test_without_torchloom_around_it_every_call_does_nothing() -> None:
    assert torchloom.info() is None
    assert torchloom.attach() is False
    torchloom.log(loss=float("nan"), anything=object())
    torchloom.step("nonsense", total=object())
    with torchloom.phase("eval"):
        pass

    @torchloom.phase("decorated")
    def value() -> int:
        return 3

    assert value() == 3
