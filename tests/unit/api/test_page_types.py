"""The page's types are those of the API today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_types_of_the_page_are_made_from_todays_description() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "make_web_types.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
