"""The command line starts fast because it imports little. Pinned by module names, not by time."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "fastapi", "pydantic", "uvicorn", "nats", "httpx", "rich", "numpy", "asyncio", "msgspec"}


def loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sorted(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}


VERBS = (
    *("ps", "status", "logs", "wait", "stop", "delete", "purge", "devices", "nodes"),
    "stragglers",
    *("incidents", "incident", "events", "token", "context", "completion", "shell", "up"),
)


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_of_a_client_import_no_server(verb: str) -> None:
    code = f"import torchloom.cli.app, torchloom.cli.{verb}, torchloom.client, torchloom.cli.plan"
    assert not loaded(code) & HEAVY


def test_run_starts_its_stack_before_anything_else() -> None:
    modules = loaded(
        "import torchloom.cli.main, torchloom.cli.run, torchloom.cli.flags, torchloom.cli.request, "
        "torchloom.cli.parts, torchloom.cli.stack"
    )
    assert not modules & (HEAVY | {"typer"})


def test_the_supervisor_is_light() -> None:
    assert not loaded("import torchloom.cli.supervisor") & (HEAVY | {"typer"})


def test_help_lists_every_verb() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torchloom.cli", "--help"], capture_output=True, text=True, check=True
    )
    for verb in (
        "up",
        "down",
        "run",
        "submit",
        "ps",
        "status",
        "logs",
        "stop",
        "devices",
        "incidents",
        "weaver",
    ):
        assert f" {verb} " in done.stdout
