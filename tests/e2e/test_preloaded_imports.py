"""What a job imports is imported ahead of its next start, and only where a fork cannot tell."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from stack import Stack, lines_of, wait_until

NOTES = "import os\nwith open({notes!r}, 'a') as f:\n    f.write(f'{{os.getpid()}}\\n')\n"


def install(site: Path, notes: Path, more: str = "") -> None:
    """A package of 30 modules that notes who imports it."""
    package = site / "heavy"
    package.mkdir(parents=True)
    imports = "".join(f"from heavy import part{n}\n" for n in range(30))
    (package / "__init__.py").write_text(NOTES.format(notes=str(notes)) + imports + more)
    for n in range(30):
        (package / f"part{n}.py").write_text("")


def importers(notes: Path) -> list[int]:
    return [int(line) for line in lines_of(notes)]


def stepping(stack: Stack, job: str, generation: int) -> int:
    """Wait until this generation steps; the pid of its worker."""

    def found() -> int:
        now = stack.try_status(job)
        steps = bool(now) and now["generation"] == generation and now["workers"][0]["steps"]
        return int(now["workers"][0]["pid"]) if steps else 0

    return int(wait_until(found, f"generation {generation} steps"))


def agent_log(stack: Stack) -> str:
    return (stack.home.logs_dir / "agent.log").read_text()


@pytest.mark.parametrize("safe", [True, False])
def test_a_restart_does_not_import_again_what_is_safe_to_import_ahead(
    stack: Stack, tmp_path: Path, safe: bool
) -> None:
    notes = tmp_path / "notes"
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    install(tmp_path / "site-packages", notes, "" if safe else thread)
    stack.env["PYTHONPATH"] = str(tmp_path / "site-packages")
    job = stack.submit("heavy_imports.py", workers=1)
    first = stepping(stack, job, 1)
    assert importers(notes)[0] == first
    learned = "modules of its job" if safe else "leaves heavy out: it starts a thread"
    wait_until(lambda: learned in agent_log(stack), learned)
    os.kill(first, signal.SIGKILL)
    second = stepping(stack, job, 2)
    assert (second in importers(notes)) == (not safe), "a worker that was forked with it does not import it"
