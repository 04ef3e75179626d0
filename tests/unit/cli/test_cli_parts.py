"""Records of running parts: whole or not at all, ours alone, and never fooled by a recycled pid."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from torchloom.cli.service import parts
from torchloom.cli.service.parts import PartRecord
from torchloom.cli.service.plan import Plan, make_token
from torchloom.cli.service.supervised import PROVEN_S, Watched
from torchloom.client.endpoint import read_token
from torchloom.errors import NotAllowed
from torchloom.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.parts_dir.mkdir(parents=True)
    return made


def test_a_record_is_private_and_comes_back(home: Home) -> None:
    record = PartRecord.of("weaver", os.getpid())
    record.write(home)
    assert PartRecord.read(home, "weaver") == record and record.alive
    assert stat.S_IMODE((home.parts_dir / "weaver.json").stat().st_mode) == 0o600
    assert parts.living(home, "weaver") == record


def test_another_process_with_the_same_pid_is_not_it(home: Home) -> None:
    record = PartRecord.of("weaver", os.getpid())
    assert not replace(record, start_ticks=record.start_ticks + 1).alive
    assert not replace(record, boot="0").alive
    assert replace(record, boot="0").hold() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}'])
def test_a_damaged_record_is_no_record(home: Home, text: str) -> None:
    (home.parts_dir / "weaver.json").write_text(text)
    assert PartRecord.read(home, "weaver") is None


def test_holders_are_forgotten_when_they_die(home: Home) -> None:
    parts.hold(home)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    PartRecord.of(f"holder-{child.pid}", child.pid).write(home)
    assert len(parts.holders(home)) == 2
    child.kill()
    child.wait()
    assert [holder.pid for holder in parts.holders(home)] == [os.getpid()]
    assert len(list(home.parts_dir.glob("holder-*"))) == 1


def test_stay_ends_with_the_boot(home: Home) -> None:
    assert not parts.stays(home)
    parts.stay(home)
    assert parts.stays(home)
    (home.parts_dir / "stay").write_text(json.dumps({"boot": "another"}))
    assert not parts.stays(home)


def test_a_failure_is_taken_once(home: Home) -> None:
    parts.write_failure(home, "weaver", "It is broken.", 5)
    assert parts.take_failure(home, "weaver") == ("It is broken.", 5)
    assert parts.take_failure(home, "weaver") is None


def test_the_plan_keeps_a_secret(home: Home) -> None:
    plan = Plan(8700, ("nats://h:4222",), "user", "secret")
    plan.write(home)
    assert Plan.read(home) == plan and plan.url == "http://127.0.0.1:8700"
    assert stat.S_IMODE((home.parts_dir / "plan.json").stat().st_mode) == 0o600


def test_the_token_is_made_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOM_TOKEN", raising=False)
    with pytest.raises(NotAllowed):
        read_token(home)
    token = make_token(home)
    assert len(token) >= 32 and make_token(home) == token == read_token(home)
    assert stat.S_IMODE(home.token_file.stat().st_mode) == 0o600
    monkeypatch.setenv("LOOM_TOKEN", "from-outside")
    assert read_token(home) == "from-outside" and make_token(home) == token


def test_backoff_grows_for_those_that_die_young() -> None:
    part = Watched("agent")
    delays = []
    for _ in range(9):
        part.failed(now_s=100.0)
        delays.append(round(part.due_s - 100.0, 3))
    assert delays == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    part._started_s = 100.0
    part.failed(now_s=100.0 + PROVEN_S)
    assert part.due_s == 100.0 + PROVEN_S, "one that had proven itself is started at once"
