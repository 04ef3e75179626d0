"""A home that several hosts see belongs to one of them at a time."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from torchloom import one_host
from torchloom.cli.service import down, parts, stack, supervisor
from torchloom.client.endpoint import local_url
from torchloom.errors import Conflict, HomeUnusable
from torchloom.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    found.prepare()
    (found.parts_dir / "plan.json").write_text('{"port": 8700}')
    return found


def used_by(home: Home, host: str, ago_s: float = 0.0) -> None:
    record = home.parts_dir / "host.json"
    record.write_text(json.dumps({"host": host, "boot": "another", "processes": 1}))
    os.utime(record, (time.time() - ago_s, time.time() - ago_s))


def locked(home: Home) -> int:
    """As another host would hold it, whose locks are seen here."""
    descriptor = os.open(one_host.lock_file(home), os.O_CREAT | os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def test_a_network_file_system_without_common_locks_has_the_record(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_host, "_is_local", lambda path: False)
    used_by(home, "login1", ago_s=3.0)
    found = one_host.elsewhere(home)
    assert found is not None and found.host == "login1" and 2.0 < found.seen_s < 20.0
    used_by(home, "login1", ago_s=one_host.RENEWED_WITHIN_S + 1)
    assert one_host.elsewhere(home) is None, "it is gone"
    used_by(home, os.uname().nodename)
    assert one_host.elsewhere(home) is None, "it is this one, started anew"
    for damaged in ("", "[]", "{}", '{"host": '):
        (home.parts_dir / "host.json").write_text(damaged)
        assert one_host.elsewhere(home) is None
    assert not list(home.parts_dir.glob(".now-*"))


def test_on_a_local_disk_the_lock_decides(home: Home) -> None:
    used_by(home, "container-of-before")
    assert one_host.elsewhere(home) is None, "a container that was killed does not keep the next one waiting"
    lock = locked(home)
    used_by(home, "other-container", ago_s=3600)
    assert one_host.elsewhere(home) is not None
    used_by(home, os.uname().nodename, ago_s=3600)
    assert one_host.elsewhere(home) is None, "it was started anew"
    one_host.claim(home)
    record = home.parts_dir / "host.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"host": "of another network"}))
    assert one_host.elsewhere(home) is None, "a host whose name has changed is the same"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"processes": 7}))
    found = one_host.elsewhere(home)
    assert found is not None and found.host == "of another network", "another container"
    os.close(lock)


def test_no_verb_touches_a_home_that_another_host_uses(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOM_HOME", str(home.root))
    used_by(home, "login1")
    lock = locked(home)
    before = {path.name for path in home.parts_dir.iterdir()}
    verbs = {
        "run, demo": lambda: parts.hold(home),
        "up": lambda: parts.stay(home),
        "submit": lambda: stack.begin(home),
        "join": lambda: stack.start_node(home),
        "down": lambda: down.command(),
        "ps, status, …": lambda: local_url(home),
    }
    for name, verb in verbs.items():
        with pytest.raises(Conflict, match="is in use on host login1, last sign of life 0 s ago") as said:
            verb()
        assert "LOOM_HOME=" in str(said.value.hint), name
    assert {path.name for path in home.parts_dir.iterdir()} == before
    assert supervisor.supervise(home, 0, True) == Conflict.exit_code
    os.close(lock)


def test_a_file_system_without_locks_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(HomeUnusable, match="without locks") as said:
        one_host.take_lock(home, 0.0)
    assert "LOOM_HOME" in str(said.value.hint)
    assert supervisor.supervise(home, 0, True) == HomeUnusable.exit_code


def test_the_supervisor_claims_renews_and_releases(home: Home) -> None:
    one_host.claim(home)
    record = home.parts_dir / "host.json"
    os.utime(record, (1.0, 1.0))
    one_host.renew(home)
    assert record.stat().st_mtime > 1e9 and one_host.elsewhere(home) is None
    one_host.release(home)
    assert not record.exists()


@pytest.mark.parametrize(
    "kind, local", [("ext4", True), ("nfs4", False), ("lustre", False), ("fuse.sshfs", False)]
)
def test_file_systems_are_told_apart(tmp_path: Path, kind: str, local: bool) -> None:
    device = os.stat(tmp_path).st_dev
    mounts = tmp_path / "mountinfo"
    numbers = f"{os.major(device)}:{os.minor(device)}"
    line = f"30 1 {numbers} / {tmp_path} rw,relatime shared:1 - {kind} server:/x rw\n"
    mounts.write_text(f"20 1 0:1 / /proc rw - proc proc rw\n{line}")
    assert one_host._is_local(tmp_path, mounts) is local
