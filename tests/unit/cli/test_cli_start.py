"""The command line starts fast because it imports little. Pinned by module names, not by time."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

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
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
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


class _Empty(BaseHTTPRequestHandler):
    """A service without jobs, nodes and troubles."""

    def do_GET(self) -> None:
        body = b"[]" if self.path.startswith("/api/v1/jobs") else b"{}"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def empty_service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Empty) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("line", ["ps", "ps -a --json", "status job-1 --json", "config job-1 --json"])
def test_a_verb_is_answered_without_heavy_imports(line: str, empty_service: str) -> None:
    """From the command line to the printed answer; only a wrong line or `--help` brings typer along."""
    code = f"""
import os
os.environ.update(LOOM_ADDRESS="{empty_service}", LOOM_TOKEN="t")
from torchloom.cli.main import run
try:
    code = run({line.split()})
except KeyError:
    code = 0  # the answer to another question: it was printed too late to matter here
assert code == 0, code
"""
    assert not loaded(code) & (HEAVY | {"typer", "click", "tempfile", "xml"})


def test_help_still_comes_from_typer() -> None:
    assert "typer" in loaded("from torchloom.cli.main import run\nassert run(['ps', '--help']) == 0")
