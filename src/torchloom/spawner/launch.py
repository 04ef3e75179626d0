"""Starting a spawner, from the agent. Owns the command line, the session and the log file of the new process.

It does not wait for it: connect with `client`, which retries until the socket is there.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchloom.private import make_private
from torchloom.spawner.key import of_the_host, spawner_environment

TORCHRUN_FLAGS = ("-u",)
"""torchrun starts its workers unbuffered; a forked worker inherits that from its spawner."""


def socket_path(directory: Path | str, key: str) -> Path:
    """Where the spawner of this key serves."""
    return Path(directory) / f"spawner-{key}.sock"


def start_spawner(
    directory: Path | str,
    key: str,
    interpreter: str,
    env: Mapping[str, str],
    preload: Sequence[str] = (),
    cold: bool = False,
    flags: Sequence[str] = TORCHRUN_FLAGS,
    idle_s: float = 30.0,
    cwd: Path | str | None = None,
    learned: str = "",
    loaded_fd: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a spawner in its own session, logging to `<directory>/spawner-<key>.log`.

    `env` is the job's environment and must make torchloom importable for `interpreter`; what belongs to the
    host is taken from ours. `cwd` is the job's
    directory, needed only to read relative entries of PYTHONPATH as the job would. Poll the result (or ignore
    SIGCHLD) so that no zombie stays: the spawner may leave before its starter. It closes `loaded_fd` once
    torch's library is loaded, and hurries: a job is on its way.
    """
    directory = Path(directory)
    make_private(directory)
    command = [interpreter, *flags, "-m", "torchloom.spawner"]
    command += ["--socket", str(socket_path(directory, key)), "--key", key, "--idle-s", f"{idle_s:g}"]
    command += ["--cold"] if cold else [word for module in preload for word in ("--preload", module)]
    command += ["--learned", learned] if learned and not cold else []
    command += ["--loaded-fd", str(loaded_fd)] if loaded_fd is not None and not cold else []
    log = os.open(directory / f"spawner-{key}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_absolute_python_path(spawner_environment(env), cwd) | of_the_host(os.environ),
            cwd="/",  # -m puts it on sys.path until start-up is done: it must hold no module
            start_new_session=True,
            pass_fds=() if loaded_fd is None else (loaded_fd,),
        )
    finally:
        os.close(log)


def _absolute_python_path(env: dict[str, str], cwd: Path | str | None) -> dict[str, str]:
    """Python makes sys.path absolute when it starts; the spawner starts elsewhere than the job."""
    path = env.get("PYTHONPATH")
    if path:
        base = cwd or os.getcwd()
        env["PYTHONPATH"] = os.pathsep.join(os.path.join(base, entry) for entry in path.split(os.pathsep))
    return env
