"""The wheel has everything in it, and a job runs from it in an environment that knows no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from importlib import metadata as installed
from pathlib import Path

import pytest

TORCH = installed.version("torch").partition("+")[0]
ROOT = Path(__file__).resolve().parents[2]
NOT_INSTALLED = ("src/torchloom/web/",)
"""Sources of the page; what is built from them is in web/dist."""
SCRIPT = """
import torch, torchloom
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torchloom.log(loss=1.0)
print("ran from", torchloom.__file__, flush=True)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves files behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    leave = shutil.ignore_patterns("node_modules", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=leave)
    build = "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))"
    (copy / "dist").mkdir()
    command = [sys.executable, "-c", build]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (made,) = (copy / "dist").glob("*.whl")
    return made


def sources() -> list[str]:
    """Every file of the package, as the wheel should name it."""
    listed = subprocess.run(
        ["git", "ls-files", "src/torchloom"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    found = [name for name in listed.stdout.splitlines() if not name.startswith(NOT_INSTALLED)]
    return [name.removeprefix("src/") for name in found if (ROOT / name).is_file()]


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert (
        "torchloom/probe/native/recorder.cpp" in sources() and "torchloom/examples/hf_trainer.py" in sources()
    )
    assert not [name for name in sources() if name not in names]
    built = ROOT / "src/torchloom/web/dist"
    page = [f"torchloom/web/dist/{p.relative_to(built)}" for p in built.rglob("*") if p.is_file()]
    assert not [name for name in page if name not in names]
    assert page or os.environ.get("CI") != "true", "in CI the page is built"


def test_extras_and_entry_points_are_in_its_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {Path(name).name: name for name in archive.namelist() if ".dist-info/" in name}
        entry_points = ConfigParser()
        entry_points.read_string(archive.read(inside["entry_points.txt"]).decode())
        metadata = archive.read(inside["METADATA"]).decode()
    assert entry_points["console_scripts"]["loom"] == "torchloom.cli.main:main"
    assert "lightning.pytorch.callbacks_factory" in entry_points
    for extra in ("torch", "s3", "transformers", "lightning", "accelerate", "integrations"):
        assert f"Provides-Extra: {extra}" in metadata
    assert "!=2.6.2" in metadata and "!=2.6.3" in metadata


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel; its dependencies are those of this environment, which a path
    file names. (Path files in there, such as the one of the checkout, are not read.)"""
    root = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True, timeout=120)
    python = root / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True, timeout=300)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    borrowed = root / "lib" / version / "site-packages" / "borrowed.pth"
    borrowed.write_text(sysconfig.get_path("purelib") + "\n")
    return root


@pytest.fixture
def clean(environment: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables for commands of that environment."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LOOM_", "PYTHON", "VIRTUAL_ENV"))}
    env = kept | {
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "LOOM_HOME": str(tmp_path / "home"),
        "NO_COLOR": "1",
    }
    yield env
    loom = [str(environment / "bin" / "loom"), "down", "--stop-jobs"]
    subprocess.run(loom, env=env, cwd=tmp_path, capture_output=True, timeout=120)


def test_a_job_runs_from_the_wheel(environment: Path, clean: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    loom = str(environment / "bin" / "loom")
    done = subprocess.run(
        [loom, "run", str(script)], env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ran from {environment}" in done.stdout and "completed: 5 steps" in done.stdout + done.stderr


S3 = """
from torchloom.checkpoint.store.storage import open_storage
print(type(open_storage("s3://bucket/x", {"AWS_REGION": "nowhere"})).__name__)
"""


@pytest.mark.long
def test_pip_installs_it_with_its_extras_into_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """`pip install torchloom[torch,s3]` as a person types it: nothing is borrowed."""
    root = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(root)], check=True, timeout=300)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LOOM_", "PYTHON", "VIRTUAL_ENV"))}
    env = kept | {"PATH": f"{root / 'bin'}:{os.environ['PATH']}", "LOOM_HOME": str(tmp_path / "home")}

    def run(*command: str) -> str:
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    constraints = str(ROOT / "constraints.txt")
    pip = (str(root / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check")
    run(*pip, "-c", constraints, f"torch=={TORCH}", f"torchloom[torch,s3] @ {wheel.as_uri()}")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    loom = str(root / "bin" / "loom")
    try:
        told = run(loom, "run", "--nproc-per-node", "2", str(script))
        assert f"ran from {root}" in told and "completed: 5 steps" in told
        assert "Storage" in run(str(root / "bin" / "python"), "-c", S3)
        assert "torchloom" in run(loom, "--version")
    finally:
        subprocess.run([loom, "down", "--stop-jobs"], env=env, cwd=tmp_path, capture_output=True, timeout=300)


BLOCKED = "import sys\nfor name in {names!r}:\n    sys.modules[name] = None\n"
WITHOUT = {
    "obstore": (
        "from torchloom.checkpoint.store.storage import open_storage; open_storage('s3://bucket/x', {})",
        "needs obstore",
    ),
    "transformers": ("import torchloom.integrations.transformers", "needs transformers: pip install"),
    "lightning": (
        "from torchloom.integrations.lightning import LoomCallback",
        "needs lightning: pip install",
    ),
    "torch": ("import torchloom.probe.native.__main__ as m; m.main()", "torch is not installed"),
}


@pytest.mark.parametrize("package", WITHOUT)
def test_a_missing_package_is_one_sentence(
    environment: Path, clean: dict[str, str], tmp_path: Path, package: str
) -> None:
    names = [package, "pytorch_lightning"]
    code, sentence = WITHOUT[package]
    command = [str(environment / "bin" / "python"), "-c", BLOCKED.format(names=names) + code]
    done = subprocess.run(command, env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    told = (done.stdout + done.stderr).strip().splitlines()
    assert told and sentence in told[-1], told


def test_a_missing_compiler_is_one_sentence(environment: Path, clean: dict[str, str], tmp_path: Path) -> None:
    env = {k: v for k, v in clean.items() if k != "CXX"}
    env |= {"PATH": str(environment / "bin"), "LOOM_NATIVE_DIR": str(tmp_path / "native")}
    command = [str(environment / "bin" / "python"), "-m", "torchloom.probe.native"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count("\n") == 1
    assert "no C++ compiler found" in done.stdout and "the Python fallback samples collectives" in done.stdout
