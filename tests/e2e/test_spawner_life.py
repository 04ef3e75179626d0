"""The life of a spawner: warming, idling, leaving, dying, and who may talk to it."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from spawning import LONG_S, base_environment, process_state, spawning, wait_until
from torch.distributed import TCPStore

from torchloom.errors import SpawnFailed
from torchloom.spawner import store as store_keeper
from torchloom.spawner.boxes import fence_of
from torchloom.spawner.client import SpawnerGone
from torchloom.spawner.launch import start_spawner
from torchloom.spawner.store import find_keepers
from torchloom.wire.blackbox import View

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
CLIENT_OF_A_STORE = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
print("up", flush=True)
sys.stdin.readline()
store.set("a", "b")
print(store.get("a"))
"""


def test_workers_survive_the_spawners_death(tmp_path: Path) -> None:
    with spawning(tmp_path, cold=True) as one:
        script = str(one.script("sleep.py", SLEEP))
        started = one.start_one(script=script)
        wait_until(lambda: one.log() == "up\n", "the script to run")
        one.process.kill()
        one.process.wait()
        with pytest.raises(SpawnerGone):
            one.client.state(LONG_S)
        assert process_state(started.pid or 0) in ("S", "R")
        # A second spawner takes over the socket of the dead one, and its journal.
        with spawning(tmp_path, cold=True) as second:
            again = second.start_one(script=script)
            assert (again.pid, again.already) == (started.pid, True)


def test_a_worker_past_the_deadline_of_its_host_is_ended_though_nobody_asks(tmp_path: Path) -> None:
    with spawning(tmp_path, cold=True) as one:
        started = one.start_one(script=str(one.script("sleep.py", SLEEP)))
        wait_until(lambda: one.log() == "up\n", "the script to run")
        one.client.close()  # the agent has died
        assert started.box is not None
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        with (
            open(started.box, "r+b") as file,
            mmap.mmap(file.fileno(), 0) as mapping,
            memoryview(mapping) as buffer,
        ):
            view = View(buffer)
            view.set_fence(10**9, now_ns + 10**9)
            view.words.release()
        wait_until(lambda: process_state(started.pid or 0) in ("", "Z"), "the worker to be ended")
        assert time.clock_gettime_ns(time.CLOCK_BOOTTIME) > now_ns + 10**9


def test_after_the_deadline_of_its_host_no_worker_is_forked(tmp_path: Path) -> None:
    with spawning(tmp_path, cold=True) as one:
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        script = str(one.script("sleep.py", SLEEP))
        (late,) = one.start(one.spec(script=script, fence=[10**9, now_ns - 1]))
        assert late.pid is None and "lease of this host ran out" in (late.error or "")
        until_ns = now_ns + 600 * 10**9
        started = one.start_one(script=script, fence=[10**9, until_ns])
        assert started.box is not None and fence_of(started.box) == (10**9, until_ns)


def test_it_leaves_by_itself_with_nobody_and_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    process = start_spawner(tmp_path, "k", sys.executable, dict(os.environ), cold=True, idle_s=0.1)
    assert process.wait(LONG_S) == 0
    assert [p.suffix for p in tmp_path.iterdir()] == [".log"], "not even its socket is left"


def test_quit_waits_for_workers_unless_told_otherwise(tmp_path: Path) -> None:
    with spawning(tmp_path, cold=True) as one:
        started = one.start_one(script=str(one.script("sleep.py", SLEEP)))
        keeper = one.client.store("test", 1)
        one.client.quit()
        with pytest.raises(SpawnFailed, match="is shutting down"):
            one.client.store("test", 2)
        assert one.client.state(LONG_S)["pid"] == one.process.pid
        os.kill(started.pid or 0, signal.SIGKILL)
        assert one.process.wait(LONG_S) == 0
        wait_until(lambda: process_state(keeper.pid) in ("", "Z"), "the store to end with its spawner")
    with spawning(tmp_path, cold=True) as one:
        started = one.start_one(name="left", script=str(one.script("sleep.py", SLEEP)))
        one.client.quit(at_once=True)
        assert one.process.wait(LONG_S) == 0
        assert process_state(started.pid or 0) in ("S", "R", "D")


def test_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can try as somebody else")
    with spawning(tmp_path, cold=True) as one:
        connection = socket.socket(socket.AF_UNIX)
        directory = os.open(one.socket.parent, os.O_PATH)
        one.socket.parent.chmod(
            0o755
        )  # what if somebody opened what we close: the kernel still knows who it is
        one.socket.chmod(0o777)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.fchdir(directory)
                os.setuid(65534)
                connection.connect(one.socket.name)
                connection.sendall(b'{"id": 1, "do": "state"}\n')
                status = 0 if connection.recv(100) == b"" else 2
            except PermissionError:
                status = 3
            except ConnectionError:
                status = 0
            finally:
                os._exit(status)
        os.close(directory)
        connection.close()
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        log = next(one.socket.parent.glob("*.log"))
        wait_until(lambda: "refused a connection of user 65534" in log.read_text(), "it is told")
        assert one.client.state(LONG_S)["state"] == "cold", "the agent that was there stays connected"


def test_a_directory_open_to_others_is_closed_and_that_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    process = start_spawner(tmp_path / "open", "k", sys.executable, dict(os.environ), cold=True)
    try:
        assert (tmp_path / "open").stat().st_mode & 0o777 == 0o700
    finally:
        process.kill()
        process.wait(LONG_S)
    if os.getuid():
        pytest.skip("only root can give a directory away")
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(PermissionError):
        start_spawner(tmp_path / "theirs", "k", sys.executable, dict(os.environ), cold=True)


def test_it_answers_while_warming_and_preloads_what_it_is_told(tmp_path: Path) -> None:
    go = tmp_path / "go"
    (tmp_path / "slow_module.py").write_text(
        "import os, time\n"
        f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\n"
        "BORN = time.monotonic()\n"
    )
    text = "import time, sys\nassert 'torch' in sys.modules\nimport slow_module\nprint(slow_module.BORN)\n"
    with spawning(tmp_path, preload=["slow_module", "no_such_module"]) as one:
        assert one.client.state(LONG_S)["state"] == "warming"
        go.touch()
        one.start_one(name="a", script=str(one.script("uses.py", text)))
        state = one.client.state(LONG_S)
        assert (state["state"], state["threads"], state["problem"]) == ("warm", 1, None)
        assert "no_such_module" in state["missing"]
        one.start_one(name="b", script=str(one.script("uses.py", text)))
        exits = [one.client.wait_exit(LONG_S) for _ in range(2)]
        assert [e.code for e in exits if e is not None] == [0, 0]
        assert one.log("a") == one.log("b") != "", "imported once, for both"


def test_a_preloaded_module_with_a_thread_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (tmp_path / "calm.py").write_text("")
    text = "import sys\nprint('calm' in sys.modules, 'threaded' in sys.modules)\nimport threaded\n"
    with spawning(tmp_path, preload=["threaded", "calm"]) as one:
        one.start_one(name="a", script=str(one.script("x.py", text)))
        ended = one.client.wait_exit(LONG_S)
        assert ended is not None and ended.code == 0
        assert "True False" in one.log("a"), "the job runs, without that module and with the other"
        state = one.client.state(LONG_S)
        assert (state["problem"], state["threads"]) == (None, 1)
        assert "importing it starts 1 thread" in state["missing"]["threaded"]


def test_an_orphaned_store_serves_on_and_ends_with_its_last_client(tmp_path: Path) -> None:
    with spawning(tmp_path, cold=True) as one:
        keeper = one.client.store("orphaned", 1)
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT_OF_A_STORE, str(keeper.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert client.stdout is not None
        assert client.stdout.readline() == "up\n"
        one.process.kill()
        one.process.wait()
        assert find_keepers(one.socket) == [keeper.pid]
        assert client.communicate("go\n", timeout=LONG_S)[0] == "b'b'\n"
        wait_until(lambda: process_state(keeper.pid) in ("", "Z"), "the keeper to end by itself")


def test_an_orphaned_store_counts_a_client_that_left_before_its_first_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_keeper, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(store_keeper, "_LOOKS_BEFORE_FIRST_CLIENT", 10**9)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False)
    client.set("a", "b")
    del client
    nobody = 0
    waiting = threading.Thread(
        target=store_keeper.wait_until_useless, args=(server, nobody, server.port), daemon=True
    )
    waiting.start()
    waiting.join(LONG_S)
    assert not waiting.is_alive()


def test_a_store_whose_spawner_died_before_it_began_ends_with_its_last_client(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    with store_keeper.listen("127.0.0.1", 0) as listener:
        port, descriptor = listener.getsockname()[1], listener.fileno()
        arguments = [str(descriptor), "127.0.0.1", str(port), str(dead.pid), str(tmp_path / "s")]
        keeper = subprocess.Popen(
            [sys.executable, "-m", "torchloom.spawner.store", *arguments],
            pass_fds=(descriptor,),
            env=base_environment(),
        )
    try:
        done = subprocess.run(
            [sys.executable, "-c", CLIENT_OF_A_STORE, str(port)],
            input="go\n",
            capture_output=True,
            text=True,
            timeout=LONG_S,
        )
        assert done.stdout == "up\nb'b'\n"
        assert keeper.wait(LONG_S) == 0
    finally:
        keeper.kill()
        keeper.wait()
