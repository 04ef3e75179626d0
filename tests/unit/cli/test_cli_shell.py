"""Lines of `loom shell`, from a pipe; its notices; completion without a service."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.app import VERBS
from torchloom.cli.main import run
from torchloom.cli.shell.complete import candidates
from torchloom.cli.shell.notices import Notices
from torchloom.cli.shell.shell import Leave, from_pipe, run_line
from torchloom.client import Endpoint


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOM_ADDRESS", "LOOM_TOKEN", "LOOM_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOOM_HOME", str(tmp_path))


def words(*typed: str) -> list[str]:
    return [word for word, _ in candidates(list(typed))]


def test_the_code_is_that_of_the_last_command() -> None:
    ran: list[str] = []

    def run(line: str) -> int:
        ran.append(line.strip())
        return {"bad": 3}.get(line.strip(), 0)

    assert from_pipe(io.StringIO("ok\nbad\n").readline, run) == 3
    assert from_pipe(io.StringIO("bad\nok").readline, run) == 0
    assert ran == ["ok", "bad", "bad", "ok"]


def test_exit_ends_it() -> None:
    assert from_pipe(io.StringIO("exit\nbogus\n").readline, run_line) == 0
    with pytest.raises(Leave):
        run_line("quit")


@pytest.mark.parametrize(
    ("line", "code"),
    [("", 0), ("# only a comment", 0), ("ps 'open", 2), ("weaver", 2), ("shell", 2), ("bogus", 2), ("ps", 3)],
)
def test_one_line(line: str, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_line(line) == code
    assert "Traceback" not in capfd.readouterr().err


def test_a_verb_may_be_written_with_its_program(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_line("loom completion bash") == 0
    assert "complete -o default" in capfd.readouterr().out
    assert run_line("help run") == 0
    assert "--nproc-per-node" in capfd.readouterr().out


def test_home_and_context_hold_for_one_command(tmp_path: Path) -> None:
    before = dict(os.environ)
    assert run_line(f"context list --home {tmp_path}/other") == 0
    assert dict(os.environ) == before


def test_verbs_and_options_are_completed() -> None:
    assert words("st") == ["status", "stop", "stragglers"]
    assert words("wait", "--ti") == ["--timeout"]
    assert words("run", "--nproc") == ["--nproc-per-node"]
    assert words("wait", "--for", "comp") == ["completed"]
    assert words("wait", "--for=comp") == ["--for=completed"]
    assert words("completion", "") == ["bash", "zsh", "fish"]
    assert words("context", "") == ["list", "use", "add", "remove"]
    assert words("context", "use", "") == ["local"]
    assert words("ps", "--json", "--js") == []
    assert words("bogus", "") == words("weaver", "") == []


def test_without_a_service_there_are_no_ids_and_no_error() -> None:
    assert words("status", "") == words("incident", "") == words("logs", "x", "--rank", "") == []


def test_every_completion_script_is_made(capfd: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert run_line(f"completion {shell}") == 0
        assert "__complete" in capfd.readouterr().out
    assert run_line("completion tcsh") == 2


def test_bash_takes_the_script(tmp_path: Path) -> None:
    """A real bash completes a verb: `loom completion ba<Tab>`."""
    loom = Path(sys.executable).with_name("loom")
    script = f"""
    export PATH={loom.parent}:$PATH
    eval "$(loom completion bash)"
    COMP_WORDS=(loom completion ba); COMP_CWORD=2; _loom; echo "${{COMPREPLY[@]}}"
    COMP_WORDS=(loom stat); COMP_CWORD=1; _loom; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["bash", "status"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish_takes_the_script() -> None:
    script = 'loom completion fish | source; complete -C "loom stat"; complete -C "loom completion z"'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["fish", "-c", script], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True
    )
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == ["status", "zsh"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh_takes_the_script() -> None:
    """As far as it can be asked without a terminal: it parses, and defines the function."""
    script = 'compdef() { print $1 $2 }; eval "$(loom completion zsh)"; whence -w _loom'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["zsh", "-fc", script], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "_loom loom\n_loom: function\n"


def change(id: str, verdict: str, decision: str, open: bool) -> dict[str, Any]:
    return {
        "id": id,
        "job": "j",
        "kind": "crash",
        "verdict": verdict,
        "decision": decision,
        "open": open,
        "resolution": "",
        "action": "restart",
        "outcome": "done",
    }


def test_notices_tell_what_is_new_and_only_once() -> None:
    said: list[tuple[str, str]] = []
    notices = Notices(Endpoint("http://127.0.0.1:1", ""), lambda *n: said.append(n), threading.Event())
    opened = {"incidents": [change("j.2", "rank 1 was killed", "restart", True)], "jobs": []}
    notices.take(opened)
    notices.take(opened)
    assert said == [("j.2: rank 1 was killed; restart", "bad")]
    notices.take({"incidents": [change("j.2", "rank 1 was killed", "restart", False)], "jobs": []})
    assert said[1:] == [("j.2: j has recovered", "good")]
    given_up = {
        "incidents": [change("j.3", "rank 1 was killed", "give up", False)],
        "jobs": [{"id": "j", "state": "failed", "reason": "no restarts left", "generation": 3}],
    }
    notices.take(given_up)
    assert said[2:] == [("j.3: j failed: rank 1 was killed; give up", "bad")]


def test_every_verb_has_help_with_examples(capfd: pytest.CaptureFixture[str]) -> None:
    for verb in VERBS:
        with contextlib.suppress(SystemExit):
            run([verb, "--help"])
        shown = capfd.readouterr().out
        assert f"loom {verb}" in shown and (verb in ("weaver", "agent") or "xample" in shown), verb
