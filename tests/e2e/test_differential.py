"""A worker of ours sees what it would see under torchrun: every difference is on a list, with its reason.

The same script dumps its process under real torchrun, a warm spawner, as a reserve of that, and a cold one.
docs/spawn.md shows users the list. A difference that is not on it fails here, and so does an entry that is no
difference any more.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from spawning import LONG_S, Spawning, base_environment, spawning, torchrun_environment

DUMP = Path(__file__).parent / "differential" / "dump.py"
ARGUMENTS = ["--flag", "x y"]

RANDOM = {
    "random.python": "drawn from the system's entropy in every process",
    "random.numpy": "drawn from the system's entropy in every process",
    "random.hash": "hash secret; one per spawner instead of one per process (set PYTHONHASHSEED to fix it)",
    "torch.initial_seed": "drawn from the system's entropy in every process",
    "torch.first_draws": "follow from the seed",
    "authkey": "drawn from the system's entropy in every process",
    "main_attributes.__loader__": "its repr shows an address",
}
OURS = {
    "environment.DUMP_DIRECTORY": "the test's own",
    "environment.MASTER_ADDR": "the agent's choice; an address needs no name service",
    "environment.MASTER_PORT": "the store's port",
    "environment.TORCHELASTIC_RUN_ID": "the job's name",
    "environment.TORCHELASTIC_ERROR_FILE": "where torchrun reads tracebacks; we have the end record instead",
    "environment.TORCHELASTIC_SIGNALS_TO_HANDLE": "for torchrun's own child processes",
    "orig_argv": "names the script without the -u of torchrun",
    "meta_path": "the probe waits for torch, or a framework, to be imported, to hook it",
}
WARM = {
    "warning_filters": "one more, of sympy, which comes with torch._dynamo",
}
WARM_WITH_THREADS = {
    "os_threads_at_start": "NumPy is loaded, and its threads with it, as in a fresh process after the import",
}
COLD: dict[str, str] = {}
_OF_GLIBC = 1 << (33 - 1)
"""SIGSETXID: how one thread tells the others that the process has another user."""


@dataclass
class Situation:
    """What torchrun is started with, and the same as an agent would say it."""

    world_size: int
    env: dict[str, str] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    before_torchrun: Callable[[], None] | None = None


def be_odd() -> None:
    import resource

    os.umask(0o027)
    os.setpriority(os.PRIO_PROCESS, 0, 1)
    os.sched_setaffinity(0, {0})
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))


SITUATIONS = {
    "two workers": Situation(
        world_size=2, env={"DUMP_SPAWN": "a child that imports torch again, once is enough"}
    ),
    "one worker": Situation(world_size=1),
    "odd settings": Situation(
        world_size=2,
        env={"TZ": "Asia/Tokyo", "TMPDIR": "/var/tmp", "OMP_NUM_THREADS": "3", "ODD": "caf\udce9 = \u00fc"},
        spec={"umask": 0o027, "nice": 1, "cpus": [0], "rlimits": {"nofile": [512, 1024]}},
        before_torchrun=be_odd,
    ),
}


def flat(value: object, name: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {name: value}
    found: dict[str, object] = {}
    for key, inner in value.items():
        found |= flat(inner, f"{name}.{key}" if name else key)
    return found


def read(directory: Path, rank: int) -> dict[str, object]:
    seen = flat(json.loads((directory / f"{rank}.json").read_text()))
    # glibc catches a signal of its own for good once a process has had a thread, as the spawner has.
    seen["status.SigCgt"] = int(str(seen["status.SigCgt"]), 16) & ~_OF_GLIBC
    # What C code sees must be what Python sees; then one of the two is enough to compare.
    in_c = {line.partition("=")[0] for line in seen.pop("c_environment")}  # type: ignore[attr-defined]
    in_python = {name.removeprefix("environment.") for name in seen if name.startswith("environment.")}
    assert in_python - in_c == set()
    # NumPy's import in the script may add to it, and a shell adds a few of its own.
    assert in_c - in_python <= {"_", "SHLVL", "PWD", "OLDPWD", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}
    return seen


def run_torchrun(directory: Path, situation: Situation) -> Path:
    output = directory / "torchrun"
    output.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={situation.world_size}", "--redirects=3", f"--log-dir={output / 'logs'}"]
    done = subprocess.run(
        [*command, str(DUMP), *ARGUMENTS],
        env={**base_environment(), **situation.env, "DUMP_DIRECTORY": str(output)},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        preexec_fn=situation.before_torchrun,
    )
    assert done.returncode == 0, done.stderr
    return output


def run_spawner(directory: Path, situation: Situation, one: Spawning) -> Path:
    output = directory / "output"
    output.mkdir()
    one.directory = directory
    keeper = one.client.store("test", 1)
    base = {**one.env, **situation.env, "DUMP_DIRECTORY": str(output)}
    size = situation.world_size
    one.start(
        *(
            one.spec(
                rank,
                script=str(DUMP),
                argv=ARGUMENTS,
                cwd=str(directory.parent),
                world_size=size,
                env=torchrun_environment(rank, size, keeper.port, base),
                **situation.spec,
            )
            for rank in range(size)
        )
    )
    for _ in range(size):
        ended = one.client.wait_exit(LONG_S)
        assert ended is not None
        assert ended.code == 0, "".join(one.log(f"worker{rank}") for rank in range(size))
    os.kill(keeper.pid, signal.SIGTERM)
    assert one.client.wait_exit(LONG_S) is not None
    return output


@pytest.fixture(scope="module")
def spawners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Spawning]]:
    """One of each kind for all situations: a worker's settings are not those of its spawner."""
    warm, cold = tmp_path_factory.mktemp("warm"), tmp_path_factory.mktemp("cold")
    with spawning(warm) as one, spawning(cold, cold=True) as other:
        yield {"warm": one, "reserve": one, "cold": other}


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_a_worker_sees_what_it_would_see_under_torchrun(
    situation: Situation, spawners: dict[str, Spawning], tmp_path: Path
) -> None:
    theirs = run_torchrun(tmp_path, situation)
    for mode, one in spawners.items():
        (tmp_path / mode).mkdir()
        one.reserves = mode == "reserve"
        ours = run_spawner(tmp_path / mode, situation, one)
        allowed = RANDOM | OURS | (COLD if mode == "cold" else WARM)
        if mode != "cold" and situation.world_size == 1:
            allowed |= WARM_WITH_THREADS
        for rank in range(situation.world_size):
            expected, seen = read(theirs, rank), read(ours, rank)
            names = expected.keys() | seen.keys()
            different = {name for name in names if expected.get(name) != seen.get(name)}
            unexplained = {n: (expected.get(n), seen.get(n)) for n in sorted(different - allowed.keys())}
            assert unexplained == {}
            assert allowed.keys() - different == set(), "on the list, but no difference any more"
        siblings = [read(ours, rank) for rank in range(situation.world_size)]
        if len(siblings) > 1:
            for name in RANDOM.keys() - {"random.hash", "main_attributes.__loader__"}:
                assert siblings[0][name] != siblings[1][name], f"siblings share {name}"
