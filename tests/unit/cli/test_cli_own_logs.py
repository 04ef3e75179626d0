"""Logs of our own parts are bounded while they are written; a unit for systemd survives odd homes."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from torchloom.cli.service import own_logs
from torchloom.cli.service.own_logs import ALIKE_A_MINUTE, Throttle, rotate
from torchloom.cli.service.systemd import unit


def test_a_log_is_cut_while_somebody_writes_to_it(tmp_path: Path) -> None:
    log = tmp_path / "weaver.log"
    with log.open("a") as writer:
        writer.write("x" * 100)
        writer.flush()
        rotate(tmp_path, limit=200)
        assert log.stat().st_size == 100, "small enough"
        writer.write("y" * 200)
        writer.flush()
        rotate(tmp_path, limit=200)
        assert log.stat().st_size == 0 and (tmp_path / "weaver.log.1").stat().st_size == 300
        writer.write("z")
        writer.flush()
    assert log.read_text() == "z", "the writer goes on at the new end"


def test_repeats_are_counted_instead_of_written(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(own_logs.time, "monotonic", lambda: now_s)
    throttle, written = Throttle(), []

    def say(line: int, number: int) -> None:
        record = logging.LogRecord("loom", logging.ERROR, "f.py", line, "attempt %d", (number,), None)
        if throttle.filter(record):
            written.append(record.getMessage())

    for number in range(1000):
        say(1, number)
    assert len(written) == ALIKE_A_MINUTE
    say(2, 0)
    assert len(written) == ALIKE_A_MINUTE + 1, "another line is another kind"
    now_s = 61.0
    say(1, 1000)
    assert written[-1] == f"attempt 1000 ({1000 - ALIKE_A_MINUTE} more like this were left out)"
    say(1, 1001)
    assert written[-1] == "attempt 1001"


def test_a_unit_names_home_and_port_and_leaves_workers_alone() -> None:
    text = unit(Path('/home/ann/a "b" 100%'), {"port": 8711})
    assert 'Environment="LOOM_HOME=/home/ann/a \\"b\\" 100%%"' in text
    assert 'up --foreground --port "8711"' in text and "KillMode=process" in text
    assert "--port" not in unit(Path("/h"), {"port": None})


def test_systemd_itself_accepts_the_unit(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("UNIT NOT VERIFIED: there is no systemd-analyze")
    text = unit(Path('/home/ann/a "b" 100%'), {"port": 8711, "keep-history": 5000})
    assert 'up --foreground --port "8711" --keep-history "5000"' in text

    def complaints(text: str) -> list[str]:
        (tmp_path / "torchloom.service").write_text(text)
        command = [verify, "--user", "verify", tmp_path / "torchloom.service"]
        env = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        return [line for line in done.stderr.splitlines() if "torchloom.service" in line]

    if not complaints(text.replace("Restart=", "Misspelled=")):
        pytest.skip("UNIT NOT VERIFIED: systemd-analyze sees nothing here")
    assert complaints(text) == []
