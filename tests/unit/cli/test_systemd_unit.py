"""The unit that `loom up --systemd` prints, read by systemd itself where its tool is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from torchloom.cli.main import run
from torchloom.cli.service.systemd import unit
from torchloom.errors import UsageError

ODD = 'a "home" of 100 % $HOME \\ here'


def test_names_with_odd_characters_are_what_systemd_reads_as_written(tmp_path: Path) -> None:
    text = unit(tmp_path / ODD, {"port": 8799, "nats": "tls://$bus:4222", "slots": None})
    assert f'Environment="LOOM_HOME={tmp_path}/a \\"home\\" of 100 %% $HOME \\\\ here"' in text
    assert '--nats "tls://$$bus:4222"' in text and '--port "8799"' in text and "--slots" not in text


def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        why = "systemd-analyze is not installed (Debian: systemd)"
        pytest.fail(why) if os.environ.get("CI") and shutil.which("systemctl") else pytest.skip(why)
    found = tmp_path / "torchloom.service"
    found.write_text(unit(tmp_path / ODD, {"port": 8799}))
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    env = os.environ | {"XDG_RUNTIME_DIR": str(runtime)}
    command = ["systemd-analyze", "--user", "verify", str(found)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "torchloom.service" not in done.stderr, done.stderr
    found.write_text(found.read_text().replace("KillMode=process", "KillMode=some"))
    again = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert "torchloom.service" in again.stderr, "it would say so"


@pytest.mark.parametrize("odd", ["/home/a\nExecStart=/bin/sh", "/home/a\rb", "/home/\x1b[31m"])
def test_what_would_be_more_than_one_line_is_refused(odd: str) -> None:
    for home, flags in ((odd, {}), ("/home/a", {"nats": odd})):
        with pytest.raises(UsageError, match="more than one line"):
            unit(Path(home), flags)


def test_a_password_does_not_get_into_a_unit() -> None:
    with pytest.raises(UsageError, match="no place for a password") as refused:
        unit(Path("/home/a"), {"nats": "nats://me:secret@bus:4222"})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("flag", ["--port=99999", "--copies=2", "--keep-history=1"])
def test_what_would_not_start_is_not_printed(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "--systemd", flag]) == 2
    said = capsys.readouterr()
    assert not said.out and said.err.startswith("loom: ") and said.err.count("\n") == 1
