"""The command line starts fast because it imports little. Pinned by module names, not by time."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

HEAVY = {"torch", "fastapi", "pydantic", "uvicorn", "nats", "httpx", "rich", "numpy", "asyncio", "msgspec"}


def said_by(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def loaded(code: str) -> set[str]:
    last = said_by(f"import sys\n{code}\nprint(*sorted(sys.modules))")[-1]
    return {name.partition(".")[0] for name in last.split()}


VERBS = (
    *("ps", "status", "logs", "wait", "stop", "delete", "purge", "devices", "nodes"),
    "stragglers",
    *("incidents", "incident", "events", "token", "context", "completion", "shell", "up"),
)


@functools.cache
def heavy_by_verb() -> dict[str, set[str]]:
    """What each verb is the first to bring along, all in one process."""
    code = f"""
import sys
from torchloom.cli.verbs import module_of
import torchloom.cli.app, torchloom.client, torchloom.cli.service.plan
for verb in {VERBS}:
    before = set() if verb == "{VERBS[0]}" else set(sys.modules)
    module_of(verb)
    print(verb, *{{name.partition(".")[0] for name in set(sys.modules) - before}})
"""
    lines = [line.split() for line in said_by(code)]
    return {verb: set(modules) & HEAVY for verb, *modules in lines}


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_of_a_client_import_no_server(verb: str) -> None:
    assert heavy_by_verb()[verb] == set()


def test_run_starts_its_stack_before_anything_else() -> None:
    modules = loaded(
        "import torchloom.cli.main, torchloom.cli.jobs.run, torchloom.cli.jobs.flags, "
        "torchloom.cli.jobs.request, torchloom.cli.service.parts, torchloom.cli.service.stack"
    )
    assert not modules & (HEAVY | {"typer"})


def test_the_supervisor_is_light() -> None:
    assert not loaded("import torchloom.cli.service.supervisor") & (HEAVY | {"typer"})


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
