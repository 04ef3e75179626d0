"""`loom join` with wrong arguments: nothing is sent or made, and a token is not left where others see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torchloom.cli.cluster import fetching
from torchloom.cli.main import run

TOKEN = f"loomjoin1.{'a' * 8}.{'b' * 32}.{'c' * 64}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--token", TOKEN], "the address of a control host is missing"),
        (["10.0.0.1", "--token", "loomjoin1.x"], "that is no join token"),
        (["http://10.0.0.1", "--token", TOKEN], "is not an address"),
        (["10.0.0.1", "--token", TOKEN, "--node", "../x"], "cannot be a node name"),
        (["10.0.0.1", "--token", TOKEN, "--address", "here"], "is an IP address of this host"),
        (["10.0.0.1", "--token", TOKEN, "--address", "0.0.0.0"], "nobody can reach this host at 0.0.0.0"),
        (["10.0.0.1", "--token", TOKEN, "--interface", "nope0"], "no interface 'nope0': it has lo"),
        (["10.0.0.1"], "a token is needed"),
    ],
)
def test_nothing_is_sent_or_made(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LOOM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LOOM_JOIN_TOKEN", raising=False)
    asked: list[str] = []
    monkeypatch.setattr(fetching, "_unproven_authorities", asked.append)
    assert run(["join", *words]) == 2
    said = capsys.readouterr().err
    assert says in said or ("it has" in says and says.partition(":")[0] in said)
    assert said.startswith("loom: ") and said.count("\n") == 1 and TOKEN not in said
    assert not asked and not (tmp_path / "home").exists()


def test_a_token_is_not_left_in_the_list_of_processes() -> None:
    program = (
        "import sys; from torchloom.cli.cluster.hidden_argument import hide_argument\n"
        "secret = sys.argv[2]; hide_argument(secret); hide_argument('')\n"
        "print(open('/proc/self/cmdline').read().split(chr(0))[3:], secret)"
    )
    command = [sys.executable, "-c", program, "--token", TOKEN, f"--again={TOKEN}", "end"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    hidden = "*" * len(TOKEN)
    assert done.stdout.strip() == f"{['--token', hidden, f'--again={hidden}', 'end', '']} {TOKEN}"
