"""The spawner for real: forked and exec'd workers, exits, reconnecting agents, stores, full file systems."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import spawning as spawning_module
from spawning import LONG_S, Spawning, exit_of, process_state, spawning, torchrun_environment, wait_until

from torchloom import __version__
from torchloom.errors import SpawnFailed
from torchloom.probe import native
from torchloom.spawner.client import AsyncSpawnerClient, ChildExit, SpawnerClient, SpawnerGone
from torchloom.spawner.launch import start_spawner
from torchloom.spawner.store import find_keepers
from torchloom.wire import blackbox
from torchloom.wire.blackbox import Header, Life

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"

SEES_RECORDER = """
import torch, torch.distributed
from torchloom.probe.observe import recorder
print("native:", recorder.is_native())
"""


@pytest.fixture(scope="module")
def warm_spawner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawning]:
    with spawning(tmp_path_factory.mktemp("warm")) as one:
        yield one


@pytest.fixture(scope="module")
def cold_spawner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawning]:
    with spawning(tmp_path_factory.mktemp("cold"), cold=True) as one:
        yield one


@pytest.fixture(params=["warm", "reserve", "cold"])
def spawner(request: pytest.FixtureRequest, tmp_path: Path) -> Spawning:
    """The shared spawner of either mode, with a fresh directory and no exit left over; the warm one also with
    workers and stores that were forked before anybody asked for them."""
    kind = "warm" if request.param == "reserve" else request.param
    one: Spawning = request.getfixturevalue(f"{kind}_spawner")
    one.reconnect()
    one.reserves = request.param == "reserve"
    one.client.reserve(int(one.reserves), "127.0.0.1" if one.reserves else None)
    one.client.forget([e["pid"] for e in one.client.state(LONG_S)["exits"]])
    one.client.exits.clear()
    one.directory = tmp_path
    return one


@pytest.fixture
def warm(warm_spawner: Spawning, tmp_path: Path) -> Spawning:
    warm_spawner.reconnect()
    warm_spawner.directory, warm_spawner.reserves = tmp_path, False
    warm_spawner.client.reserve(0)
    return warm_spawner


# -- versions -----------------------------------------------------------------------------------------
def test_a_request_of_a_newer_schema_is_refused_with_a_sentence(warm: Spawning) -> None:
    state = warm.client.state(LONG_S)
    assert state["version"] == __version__
    with pytest.raises(SpawnFailed, match="is too old for the request: it has schema 99"):
        warm.client.call("state", LONG_S, schema=99)


# -- starting and ending ------------------------------------------------------------------------------
def test_exit_codes_and_signals_are_reported(spawner: Spawning) -> None:
    good = spawner.start_one(name="good", script=str(spawner.script("good.py", "print('fine')")))
    bad = spawner.start_one(name="bad", script=str(spawner.script("bad.py", "raise SystemExit(7)")))
    dead = spawner.start_one(
        name="dead", script=str(spawner.script("dead.py", "import os\nos.kill(os.getpid(), 9)"))
    )
    exits = {e.pid: e for e in (spawner.client.wait_exit(LONG_S) for _ in range(3)) if e is not None}
    assert (exits[good.pid or 0].code, exits[good.pid or 0].signal) == (0, None)
    assert (exits[bad.pid or 0].code, exits[bad.pid or 0].signal) == (7, None)
    assert (exits[dead.pid or 0].code, exits[dead.pid or 0].signal) == (None, signal.SIGKILL)
    assert spawner.log("good") == "fine\n"
    assert all(process_state(pid) == "" for pid in exits), "a zombie was left"


def test_an_exception_ends_with_pythons_own_traceback(spawner: Spawning) -> None:
    script = spawner.script("raises.py", "def f():\n    raise ValueError('odd')\nf()\n")
    started = spawner.start_one(name="raises", script=str(script))
    assert exit_of(spawner.client, started.pid).code == 1
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert spawner.log("raises") == plain.stderr


def test_the_interpreter_ends_normally(spawner: Spawning) -> None:
    text = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'atexit')\n"
        "over = threading.Event()\n"
        "threading.Thread(target=lambda: (over.wait(), time.sleep(0.1), print('thread'))).start()\n"
        "print('end of script')\n"
        "over.set()\n"
    )
    started = spawner.start_one(name="ends", script=str(spawner.script("ends.py", text)))
    assert exit_of(spawner.client, started.pid).code == 0
    assert spawner.log("ends").split("\n") == ["end of script", "thread", "atexit", ""]


def test_the_box_is_filled_before_the_fork_and_signed_by_the_child(spawner: Spawning) -> None:
    started = spawner.start_one(
        name="boxed", rank=3, generation=5, script=str(spawner.script("sleep.py", SLEEP))
    )
    wait_until(lambda: spawner.log("boxed") == "up\n", "the script to run")
    assert started.box is not None
    view = blackbox.View(memoryview(Path(started.box).read_bytes()))
    assert view.is_valid()
    assert view.header(Header.PID) == started.pid
    assert view.header(Header.START_TICKS) == started.start_ticks
    assert [view.header(h) for h in (Header.RANK, Header.GENERATION, Header.INCARNATION)] == [3, 5, 7]
    assert view.header(Header.LIFE) >= Life.FORKED
    identity = json.loads(view.read_blob(blackbox.IDENTITY) or b"{}")
    assert (identity["job"], identity["replica"], identity["rank"]) == ("test", "test/0", 3)
    assert Path(started.box).stat().st_mode & 0o777 == 0o600
    os.kill(started.pid or 0, signal.SIGTERM)
    assert exit_of(spawner.client, started.pid).signal == signal.SIGTERM


def test_a_repeated_start_starts_nothing(spawner: Spawning) -> None:
    script = str(spawner.script("sleep.py", SLEEP))
    first = spawner.start_one(name="once", script=script)
    again = spawner.start_one(name="once", script=script)
    assert (again.pid, again.start_ticks, again.already) == (first.pid, first.start_ticks, True)
    os.kill(first.pid or 0, signal.SIGKILL)
    exit_of(spawner.client, first.pid)
    after = spawner.start_one(name="once", script=script)
    assert (after.pid, after.already) == (first.pid, True), "the box is the journal, also after the end"


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_libraries_that_were_compiled_on_the_host_are_found_by_every_job(
    tmp_path: Path, cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image: LOOM_NATIVE_DIR is the agent's, and the job knows another one or none."""
    library = native.build().library
    if library is None:
        pytest.skip("no C++ compiler")
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o700)
    shutil.copy2(library, kept)
    monkeypatch.setenv("LOOM_NATIVE_DIR", str(kept))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with spawning(tmp_path, cold=cold) as one:
        one.env = {**one.env, "LOOM_NATIVE_DIR": "/of/the/submitter"}
        script = one.script("seen.py", SEES_RECORDER)
        exit_of(one.client, one.start_one(script=str(script)).pid)
        assert "native: True" in one.log()


AGENT_OF_SOMEBODY = """
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""
TORCH_WITH_A_THREAD = """
import sys, threading, time
class Finder:
    def find_spec(self, name, *_):
        if name == "torch":
            sys.meta_path.remove(self)
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("where", ["sitecustomize", "torch"])
def test_threads_that_python_or_torch_start_cost_time_and_nothing_else(
    tmp_path: Path, where: str, cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with monitoring agents that put themselves into every interpreter, or a build of torch that starts
    some when it is imported: a fork would not have these threads, so workers are new processes."""
    places = tmp_path / "places"
    places.mkdir()
    started = AGENT_OF_SOMEBODY if where == "sitecustomize" else TORCH_WITH_A_THREAD
    (places / "sitecustomize.py").write_text(started)
    threads = "import torch, threading\nprint('threads', threading.active_count())\n"
    monkeypatch.setattr(spawning_module, "SOURCE", f"{places}{os.pathsep}{spawning_module.SOURCE}")
    with spawning(tmp_path, cold=cold) as one:
        one.wait_warm()
        store = one.client.call("store", LONG_S, job="j", generation=1, host="127.0.0.1", port=0, env=one.env)
        assert store["port"]
        worker = one.start_one(script=str(one.script("seen.py", threads)), env={**one.env, "RANK": "0"})
        ended = exit_of(one.client, worker.pid)
        assert ended.code == 0, one.log()
        assert "threads 2" in one.log()
        assert one.client.reserve(1, "127.0.0.1") == {"workers": 0, "store": False}
        why = "every worker is a new process: "
        assert (why in one.log()) == (not cold)


def test_any_program_can_be_a_worker(spawner: Spawning) -> None:
    started = spawner.start_one(
        name="shell",
        command=["sh", "-c", 'echo "$0 $GREETING $LOOM_BOX"; exit 4', "word"],
        env={**spawner.env, "GREETING": "hello"},
    )
    assert exit_of(spawner.client, started.pid).code == 4
    assert spawner.log("shell") == f"word hello {started.box}\n"


def test_what_cannot_be_started_is_said_in_a_sentence(spawner: Spawning) -> None:
    missing, nowhere, empty, unwritable = spawner.start(
        spawner.spec(name="a", command=["no-such-program"]),
        spawner.spec(name="b", script="x.py", cwd="/no/such/directory"),
        spawner.spec(name="c"),
        spawner.spec(name="d", script="x.py", stdout="/proc/none/x.log"),
    )
    assert missing.error == "there is no program no-such-program"
    assert nowhere.error == "the working directory /no/such/directory does not exist"
    assert empty.error == "a worker needs exactly one of script, module and command"
    assert (unwritable.error or "").startswith("the log file /proc/none/x.log cannot be opened")
    assert not list((spawner.directory).glob("boxes/*"))
    (strange,) = spawner.client.start([spawner.spec(name="e", script="x.py", rlimits=7, rank="many")])
    assert (strange.error or "").startswith("bad request")
    with pytest.raises(SpawnFailed, match="cannot do 'dance'"):
        spawner.client.call("dance", LONG_S)


def test_a_missing_script_ends_as_python_does(spawner: Spawning) -> None:
    started = spawner.start_one(name="missing", script="missing.py")
    assert exit_of(spawner.client, started.pid).code == 2
    assert "can't open file" in spawner.log("missing")


def test_a_signal_to_a_newborn_is_not_lost(warm: Spawning) -> None:
    script = str(warm.script("sleep.py", SLEEP))
    for n in range(10):
        started = warm.start_one(name=f"newborn{n}", script=script)
        os.kill(started.pid or 0, signal.SIGTERM)
        assert exit_of(warm.client, started.pid).signal == signal.SIGTERM


# -- reserves -------------------------------------------------------------------------------------------
def reserves_of(one: Spawning) -> list[int]:
    return [int(pid) for pid in one.client.state(LONG_S)["reserves"]]


def test_a_reserve_becomes_the_worker_and_one_that_is_gone_or_stopped_does_not_matter(warm: Spawning) -> None:
    script = str(warm.script("sleep.py", SLEEP))
    assert warm.client.reserve(3) == {"workers": 3, "store": False}
    reserves = reserves_of(warm)
    os.kill(reserves[2], signal.SIGSTOP)
    started = [warm.start_one(name=f"used{n}", script=script) for n in range(2)]
    assert [one.pid for one in started] == [reserves[2], reserves[1]], "also one that somebody had stopped"
    os.kill(reserves[0], signal.SIGKILL)
    wait_until(lambda: reserves_of(warm) == [], "the spawner to notice that its reserve was killed")
    forked = warm.start_one(name="forked", script=script)
    assert forked.pid not in reserves
    for n, one in enumerate((*started, forked)):
        name = f"used{n}" if n < 2 else "forked"
        wait_until(lambda name=name: warm.log(name) == "up\n", "the script to run")
        os.kill(one.pid or 0, signal.SIGTERM)
        assert exit_of(warm.client, one.pid).signal == signal.SIGTERM


def test_a_reserve_store_is_used_where_it_listens_and_nowhere_else(warm: Spawning) -> None:
    assert warm.client.reserve(0, "127.0.0.1") == {"workers": 0, "store": True}
    there = _children(warm.process.pid)
    chosen = warm.client.store("elsewhere", 1, host="127.0.0.2")
    first, second = (warm.client.store("here", n) for n in (1, 2))
    assert (chosen.host, first.host, second.host) == ("127.0.0.2", "127.0.0.1", "127.0.0.1")
    assert [one.pid in there for one in (chosen, first, second)] == [False, True, False], "it is used once"
    for keeper in (chosen, first, second):
        socket.create_connection((keeper.host, keeper.port), LONG_S).close()
        os.kill(keeper.pid, signal.SIGTERM)
        assert exit_of(warm.client, keeper.pid).kind == "store"


def test_reserves_end_with_their_spawner_and_when_they_are_not_needed(tmp_path: Path) -> None:
    with spawning(tmp_path) as one:
        one.client.reserve(2, "127.0.0.1")
        reserves = reserves_of(one)
        kept = {*reserves, *_children(one.process.pid)}
        one.client.reserve(1)
        wait_until(lambda: process_state(reserves[1]) == "", "the reserve that is not needed to end")
        one.process.kill()
        one.process.wait()
        wait_until(lambda: all(process_state(pid) in ("", "Z") for pid in kept), "all reserves to end")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# -- the life of a spawner ----------------------------------------------------------------------------
def test_missed_exits_are_repeated_until_forgotten(spawner: Spawning) -> None:
    started = spawner.start_one(name="brief", script=str(spawner.script("brief.py", "raise SystemExit(5)")))
    spawner.client.close()
    wait_until(lambda: process_state(started.pid or 0) == "", "the spawner to reap on its own")
    for _ in range(2):
        spawner.reconnect()
        ended = exit_of(spawner.client, started.pid)
        assert (ended.code, ended.start_ticks, ended.kind) == (5, started.start_ticks, "worker")
    spawner.client.forget([started.pid or 0])
    spawner.reconnect()
    assert spawner.client.state(LONG_S)["exits"] == []
    assert not spawner.client.exits


def test_a_new_agent_replaces_the_old(spawner: Spawning) -> None:
    old = spawner.client
    spawner.client = SpawnerClient.connect(spawner.socket)
    spawner.client.state(LONG_S)
    with pytest.raises(SpawnerGone):
        old.state(LONG_S)
    old.close()


def test_one_spawner_per_socket(cold_spawner: Spawning) -> None:
    second = start_spawner(
        cold_spawner.socket.parent, cold_spawner.key, sys.executable, cold_spawner.env, cold=True
    )
    assert second.wait(LONG_S) == 1
    log = cold_spawner.socket.with_name(f"spawner-{cold_spawner.key}.log")
    assert f"another spawner serves {cold_spawner.socket}" in log.read_text()
    cold_spawner.reconnect()
    assert cold_spawner.client.state(LONG_S)["state"] == "cold"


def test_the_asyncio_client(cold_spawner: Spawning, tmp_path: Path) -> None:
    cold_spawner.client.close()
    cold_spawner.directory = tmp_path

    async def scenario() -> list[ChildExit]:
        exits: list[ChildExit] = []
        client = await AsyncSpawnerClient.connect(cold_spawner.socket, exits.append)
        started, refused = await client.start(
            [cold_spawner.spec(name="a", command=["sh", "-c", "exit 3"]), cold_spawner.spec(name="b")]
        )
        assert refused.error is not None
        assert (await client.state())["pid"] == cold_spawner.process.pid
        while not [e for e in exits if e.pid == started.pid]:
            await asyncio.sleep(0.01)
        await client.forget([e.pid for e in exits])
        assert (await client.state())["exits"] == []
        replacement = await AsyncSpawnerClient.connect(cold_spawner.socket, exits.append)
        await asyncio.wait_for(client.gone.wait(), LONG_S)
        with pytest.raises(SpawnerGone):
            await client.state()
        await replacement.close()
        await client.close()
        return [e for e in exits if e.pid == started.pid]

    (ended,) = asyncio.run(scenario())
    assert (ended.code, ended.job) == (3, "test")


# -- full file systems --------------------------------------------------------------------------------
@pytest.fixture
def tiny_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 64 KiB: smaller than a black box."""
    place = tmp_path / "tiny"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_full_shared_memory_costs_telemetry_not_training(spawner: Spawning, tiny_tmpfs: Path) -> None:
    assert blackbox.SIZE > 64 << 10
    script = str(spawner.script("fine.py", "print('fine')"))
    fallback = spawner.directory / "elsewhere"
    fallback.mkdir()
    second = spawner.start_one(
        name="second", box=str(tiny_tmpfs / "w.box"), box_fallback=str(fallback), script=script
    )
    assert second.box == str(fallback / "w.box")
    assert "No space left on device" in second.notes[0]
    assert spawner.start_one(
        name="second", box=str(tiny_tmpfs / "w.box"), box_fallback=str(fallback), script=script
    ).already
    none = spawner.start_one(name="none", box=str(tiny_tmpfs / "v.box"), box_fallback=None, script=script)
    assert none.box is None
    assert {exit_of(spawner.client, p).code for p in (second.pid, none.pid)} == {0}
    assert spawner.log("second") == spawner.log("none") == "fine\n"
    assert not list(tiny_tmpfs.iterdir()), "a box without room was left behind"


def test_a_full_disk_under_stdout_does_not_end_the_worker(spawner: Spawning, tiny_tmpfs: Path) -> None:
    text = (
        "import sys\nfor i in range(4000):\n    print('x' * 99)\nsys.stderr.write('y' * 9999)\n"
        f"open({str(spawner.directory / 'survived')!r}, 'w').close()\n"
    )
    log = str(tiny_tmpfs / "out.log")
    started = spawner.start_one(
        name="loud", stdout=log, stderr=log, script=str(spawner.script("loud.py", text))
    )
    assert exit_of(spawner.client, started.pid).code == 0
    assert (spawner.directory / "survived").exists()
    assert Path(log).stat().st_size <= 64 << 10


# -- stores -------------------------------------------------------------------------------------------
JOIN = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.ones(1)
dist.all_reduce(t)
print("sum", t.item(), flush=True)
if rank == 0:
    sys.exit(0)
store = dist.distributed_c10d._get_default_store()
store.set("after", "zero left")
while True:
    try:
        open("zero-is-gone").close()
        break
    except FileNotFoundError:
        time.sleep(0.01)
print(store.get("after").decode(), flush=True)
"""


def test_the_store_serves_a_group_and_outlives_rank_zero(spawner: Spawning) -> None:
    keeper = spawner.client.store("stored", 1, env=spawner.env)
    assert spawner.client.store("stored", 1).pid == keeper.pid, "asked again, the same one"
    script = str(spawner.script("join.py", JOIN))
    zero, one = spawner.start(
        *(
            spawner.spec(r, script=script, world_size=2, env=torchrun_environment(r, 2, keeper.port))
            for r in (0, 1)
        )
    )
    assert exit_of(spawner.client, zero.pid).code == 0, spawner.log("worker0")
    (spawner.directory / "zero-is-gone").touch()
    assert exit_of(spawner.client, one.pid).code == 0, spawner.log("worker1")
    assert "sum 2.0\nzero left\n" in spawner.log("worker1")
    assert find_keepers(spawner.socket) == [keeper.pid]
    fresh = spawner.client.store("stored", 2, env=spawner.env)
    assert fresh.pid != keeper.pid
    for process in (keeper, fresh):
        os.kill(process.pid, signal.SIGTERM)
        ended = exit_of(spawner.client, process.pid)
        assert (ended.kind, ended.signal) == ("store", signal.SIGTERM)
    assert find_keepers(spawner.socket) == []


def test_a_taken_port_is_said(warm: Spawning) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SpawnFailed, match="in use"):
        warm.client.store("taken", 1, port=taken.getsockname()[1])
