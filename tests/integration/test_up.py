"""`loom up` and `loom down`: real parts, real kills. Every test ends with nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from loom_home import LoomHome, wait_for
from plain_nats import plain_nats

from torchloom.agent.processes.process import is_alive, start_ticks

PARTS = ("nats", "weaver", "agent")


@pytest.fixture
def bare() -> Iterator[LoomHome]:
    with tempfile.TemporaryDirectory(prefix="loom-up-") as root:
        loom = LoomHome(Path(root) / "home")
        try:
            yield loom
        finally:
            loom.loom("down", "--stop-jobs")
        wait_for(lambda: not loom.leftovers(), f"nothing left: {loom.leftovers()}")


@pytest.fixture
def up(bare: LoomHome) -> LoomHome:
    bare.loom("up", "--port", "0")
    return bare


def pids(loom: LoomHome) -> dict[str, int]:
    return {part: loom.pid(part) for part in PARTS}


def test_up_answers_and_keeps_its_secrets(up: LoomHome) -> None:
    status, _, body = up.request("GET", "/health", token="")
    assert status == 200 and body["ready"]
    for path in (up.home.token_file, up.home.parts_dir / "plan.json", up.home.parts_dir / "weaver.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(up.home.root.stat().st_mode) == 0o700
    token = up.home.token_file.read_text().strip()
    assert all(token not in command for command in up.processes())


def test_a_second_up_finds_the_first(up: LoomHome) -> None:
    before = pids(up)
    said = up.loom("up").stdout
    assert "already up at http://127.0.0.1:" in said
    assert pids(up) == before


def test_of_two_at_once_one_wins(bare: LoomHome) -> None:
    both = [bare.start("up", "--port", "0") for _ in range(2)]
    said = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sum("already" in out for out, _ in said) == 1, said
    supervisors = [command for command in bare.processes() if "cli.service.supervisor" in command]
    assert len(supervisors) == 1


@pytest.mark.parametrize("part", PARTS)
def test_a_killed_part_is_started_again(up: LoomHome, part: str) -> None:
    before = pids(up)
    up.kill(part)
    wait_for(lambda: up.pid(part) not in (0, before[part]), f"a new {part}")
    wait_for(lambda: up.request("GET", "/health")[2]["ready"], "ready again")
    after = pids(up)
    assert {p: after[p] for p in PARTS if p != part} == {p: before[p] for p in PARTS if p != part}
    wait_for(lambda: any(n["state"] == "ready" for n in up.json("nodes")), "the node is ready")


def test_a_new_supervisor_adopts(up: LoomHome) -> None:
    before = pids(up)
    up.kill("supervisor")
    weaver = up.kill("weaver")
    up.loom("up")
    wait_for(lambda: up.pid("weaver") not in (0, weaver), "the missing part is started")
    after = pids(up)
    assert (after["nats"], after["agent"]) == (before["nats"], before["agent"])
    assert up.request("GET", "/health")[0] == 200


def test_down_without_a_supervisor_ends_everything(up: LoomHome) -> None:
    up.kill("supervisor")
    up.kill("agent")
    up.loom("down")
    assert not up.leftovers()


def test_down_asks_what_shall_become_of_jobs(up: LoomHome) -> None:
    job = up.sleeper()
    worker = up.json("status", job)["workers"][0]["pid"]
    ticks = start_ticks(worker)
    refused = up.loom("down", code=5)
    assert job in refused.stderr and "--keep-jobs" in refused.stderr
    up.loom("down", "--keep-jobs")
    assert is_alive(worker, ticks)
    up.loom("up", "--port", "0")
    again = wait_for(lambda: up.json("status", job), "the job is known")
    assert again["workers"][0]["pid"] == worker and again["restarts"] == 0
    up.loom("down", "--stop-jobs")
    assert not is_alive(worker, ticks)


def test_a_taken_port_is_one_sentence(bare: LoomHome) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = bare.loom("up", "--port", str(port), code=5).stderr
    assert f"127.0.0.1:{port}" in said and "--port" in said and said.count("\n") == 1
    wait_for(lambda: not bare.processes(), "nothing runs")


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    loom = LoomHome(tmp_path / "file" / "home")
    said = loom.loom("up", code=4).stderr
    assert "LOOM_HOME" in said and said.count("\n") == 1


def test_nats_without_jetstream_is_refused(bare: LoomHome, tmp_path: Path) -> None:
    with plain_nats(tmp_path) as port:
        said = bare.loom("up", "--port", "0", "--nats", f"nats://127.0.0.1:{port}", code=2).stderr
    assert "JetStream" in said and said.count("\n") == 1


def test_nobody_at_the_external_nats(bare: LoomHome) -> None:
    said = bare.loom("up", "--port", "0", "--nats", "nats://127.0.0.1:1", code=6).stderr
    assert "127.0.0.1:1" in said and said.count("\n") == 1


def test_in_the_foreground_sigterm_ends_it(bare: LoomHome) -> None:
    process = bare.start("up", "--foreground", "--port", "0")
    wait_for(lambda: (bare.home.parts_dir / "plan.json").exists(), "it runs")
    wait_for(lambda: bare.pid("weaver") and bare.request("GET", "/health")[2]["ready"], "it answers")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=240)
    assert process.returncode == 0
    assert not bare.leftovers()


def test_sigterm_ends_parts_that_still_wait_for_the_bus(bare: LoomHome) -> None:
    process = bare.start("up", "--foreground", "--port", "0")
    nats = wait_for(lambda: bare.pid("nats"), "the bus was started")
    os.kill(nats, signal.SIGSTOP)  # as slow as a machine can be
    wait_for(lambda: bare.pid("weaver") and bare.pid("agent"), "the others too")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=240)
    assert process.returncode == 0
    assert not bare.leftovers()


def test_a_part_that_cannot_start_is_not_tried_in_a_hot_loop(up: LoomHome) -> None:
    up.kill("agent")
    wait_for(lambda: up.pid("agent"), "back")
    deadline = time.monotonic() + 3
    killed: set[int] = set()
    while time.monotonic() < deadline:
        pid = up.pid("agent")
        if pid and pid not in killed:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.add(pid)
        time.sleep(0.01)
    assert len(killed) <= 7, "backoff doubles from 0.1 s"
    wait_for(lambda: up.pid("agent") not in killed, "the agent is back in the end")
