"""The oldest releases of the frameworks that the extras allow, and one in between, on today's torch.

Each is laid over this environment (`pip install --target`), so that nothing here is replaced, and the tests
of the integrations run with it in an interpreter of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/unit/integrations/test_odd_trainings.py", "tests/unit/integrations/test_accelerate_loop.py")
OLD_SETUPTOOLS = "setuptools==75.6.0"
"""Lightning 2.2 imports pkg_resources, which newer releases no longer have."""
RELEASES = {
    "lightning 2.2": ("lightning", ("lightning==2.2.5", "pytorch-lightning==2.2.5", OLD_SETUPTOOLS)),
    "lightning 2.4": ("lightning", ("lightning==2.4.0", "pytorch-lightning==2.4.0")),
    "transformers 4.40": (
        "not lightning and not ends_early",  # `eval_strategy` had another name
        ("transformers==4.40.2", "tokenizers==0.19.1", "accelerate==0.30.1", "huggingface_hub==0.23.5"),
    ),
    "transformers 4.46": (
        "not lightning",
        ("transformers==4.46.3", "tokenizers==0.20.3", "accelerate==1.0.1", "huggingface_hub==0.26.5"),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("release", RELEASES)
def test_trainings_are_seen(release: str, tmp_path: Path) -> None:
    which, packages = RELEASES[release]
    over = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(over), *packages], check=True, timeout=900)
    command = [sys.executable, "-m", "pytest", "-q", "-k", which, "--basetemp", str(tmp_path / "inner")]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env |= {"PYTHONPATH": str(over), "CI": "true"}  # in CI a missing package is an error
    done = subprocess.run([*command, *TESTS], cwd=ROOT, env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
