"""A real spawner for a test, with specs as an agent would write them; leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchloom.spawner.boxes import start_ticks
from torchloom.spawner.client import ChildExit, SpawnerClient, Started
from torchloom.spawner.key import spawner_key
from torchloom.spawner.launch import TORCHRUN_FLAGS, socket_path, start_spawner
from torchloom.wire import blackbox

SOURCE = Path(__file__).parents[2] / "src"
LONG_S = 120.0
"""For conditions that come within a second unless the machine is very busy."""
IDLE_S = 600.0
"""A spawner that a test does not talk to for a while is there when the next one does."""


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = LONG_S) -> Any:
    give_up = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < give_up, f"waited {timeout_s:g} s in vain: {what}"
        time.sleep(0.01)


def process_state(pid: int) -> str:
    """R, S, Z, …, or "" when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def exit_of(client: SpawnerClient, pid: int | None) -> ChildExit:
    """The exit of one process; those of others stay in the client's queue."""
    others: list[ChildExit] = []
    try:
        while True:
            ended = client.wait_exit(LONG_S)
            assert ended is not None, f"no exit of {pid} was reported"
            if ended.pid == pid:
                return ended
            others.append(ended)
    finally:
        client.exits.extendleft(reversed(others))


def base_environment() -> dict[str, str]:
    """A job's environment: this process's, with torchloom importable and no thread setting of its own."""
    dropped = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    env = {k: v for k, v in os.environ.items() if k not in dropped and not k.startswith(("PYTEST", "LOOM_"))}
    env["PYTHONPATH"] = str(SOURCE)
    return env


def torchrun_environment(
    rank: int, world_size: int, port: int, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What torchrun gives a worker on a single host."""
    env = dict(base_environment() if base is None else base)
    env |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    if world_size > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    return env


class Spawning:
    """A spawner of its own, a client connected to it, and a directory for boxes, logs and scripts."""

    def __init__(self, directory: Path, cold: bool, preload: Sequence[str] = ()) -> None:
        self.directory = directory
        self.env = base_environment()
        if preload:
            self.env["PYTHONPATH"] += f"{os.pathsep}{directory}"
        self.key = spawner_key(sys.executable, TORCHRUN_FLAGS, self.env, preload, cold)
        self.socket = socket_path(directory / "run", self.key)
        self.process = start_spawner(
            directory / "run", self.key, sys.executable, self.env, preload, cold, idle_s=IDLE_S
        )
        self.client = SpawnerClient.connect(self.socket, LONG_S)
        self._started: list[tuple[int, int]] = []
        self.reserves = False
        """Whether workers are forked before they are asked for."""

    def reconnect(self) -> None:
        self.client.close()
        self.client = SpawnerClient.connect(self.socket, LONG_S)

    def wait_warm(self) -> None:
        wait_until(lambda: self.client.state(LONG_S)["state"] != "warming", "the spawner to be warm")

    def script(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def spec(self, rank: int = 0, **changes: Any) -> dict[str, Any]:
        name = changes.pop("name", f"worker{rank}")
        return {
            "box": str(self.directory / "boxes" / f"{name}.box"),
            "box_fallback": None,
            "job": "test",
            "replica": "test/0",
            "rank": rank,
            "world_size": 1,
            "local_rank": rank,
            "generation": 1,
            "incarnation": 7,
            "argv": [],
            "cwd": str(self.directory),
            "env": self.env,
            "stdout": str(self.directory / f"{name}.log"),
            "stderr": str(self.directory / f"{name}.log"),
            **changes,
        }

    def start(self, *specs: dict[str, Any]) -> list[Started]:
        if self.reserves:
            self.client.reserve(len(specs), "127.0.0.1")
        started = self.client.start(specs, LONG_S)
        self._started += [(s.pid, s.start_ticks or 0) for s in started if s.pid is not None]
        return started

    def start_one(self, **changes: Any) -> Started:
        (started,) = self.start(self.spec(**changes))
        assert started.error is None
        return started

    def log(self, name: str = "worker0") -> str:
        path = self.directory / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def header(self, box: str | None, index: blackbox.Header) -> int:
        assert box is not None
        return blackbox.View(memoryview(Path(box).read_bytes())).header(index)

    def close(self) -> None:
        self.client.close()
        keepers: list[tuple[int, int]] = []
        with contextlib.suppress(OSError), SpawnerClient.connect(self.socket, 0.0) as client:
            keepers = [(c["pid"], c["start_ticks"]) for c in client.state(LONG_S)["children"]]
        for pid, ticks in {*self._started, *keepers}:
            if ticks and start_ticks(pid) == ticks and process_state(pid) != "Z":
                os.killpg(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(LONG_S)


@contextlib.contextmanager
def spawning(directory: Path, cold: bool = False, preload: Sequence[str] = ()) -> Iterator[Spawning]:
    directory.chmod(0o700)
    one = Spawning(directory, cold, preload)
    try:
        yield one
    finally:
        one.close()
