"""The lock with hashes names every package that set-up needs, at the versions of constraints.txt."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0]).lower()


def test_the_lock_has_the_versions_of_the_constraints() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "make_lock.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_everything_that_set_up_needs_is_locked_with_a_hash() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[a-z0-9-]+==\S+( --hash=sha256:[0-9a-f]{64})+", line) for line in lines)
    locked = {name_of(line) for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["dev"], *extras["integrations"], *extras["otel"]]
    assert {name_of(one) for one in needed} - locked - {"torch", "torchloom"} == set()
