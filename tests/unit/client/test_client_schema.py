"""The client is what the API says it is: made from its description, and light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_client_is_made_from_todays_description() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "make_client.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_it_needs_only_the_standard_library() -> None:
    code = "import sys, torchloom.client; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"typer", "rich", "msgspec", "fastapi", "pydantic", "httpx", "nats", "torch", "asyncio"}
    assert not set(done.stdout.split()) & heavy
