"""Starts our processes: a part or the supervisor, each in its own session and with its own log."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys

from torchloom.cli.service import own_logs
from torchloom.cli.service.plan import HOST
from torchloom.errors import HomeUnusable, PortTaken, UsageError
from torchloom.home import Home

PYTHON = (sys.executable, "-P", "-m")
"""-P: a module in the user's working directory must not shadow one of ours."""
SECRET = frozenset(
    {"LOOM_TOKEN", "LOOM_ADDRESS", "LOOM_NATS_URL", "LOOM_NATS_USER", "LOOM_NATS_PASSWORD", "LOOM_NATS_INBOX"}
)


def check_port(port: int) -> None:
    if not 0 <= port < 65536:
        raise UsageError(f"{port} is not a port: use 1 to 65535, or 0 for any free one.")


def open_port(port: int, any_port: bool, host: str = HOST) -> socket.socket:
    """Listen on the weaver's behalf, so that clients find an open port even while the weaver restarts."""
    check_port(port)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
        return listener
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE and any_port:
            return open_port(0, False, host)
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"Another program listens on {host}:{port}", hint="stop it or choose another with --port"
            ) from None
        raise UsageError(f"Cannot listen on {host}:{port} ({error.strerror}).") from error


def start_part(home: Home, name: str, listener: socket.socket | None) -> subprocess.Popen[bytes]:
    """Start the weaver or the agent of this home."""
    command = [*PYTHON, "torchloom.cli", name, "--part"]
    passed: tuple[int, ...] = ()
    if name == "weaver" and listener is not None:
        command += ["--fd", str(listener.fileno())]
        passed = (listener.fileno(),)
    # Parts read the bus from the plan and the token from a file: an agent's environment holds no secret.
    env = {key: value for key, value in os.environ.items() if key not in SECRET}
    return _start(home, name, command, passed, env)


def start_supervisor(home: Home, port: int, any_port: bool) -> subprocess.Popen[bytes]:
    command = [*PYTHON, "torchloom.cli.service.supervisor", "--home", str(home.root), "--port", str(port)]
    return _start(home, "supervisor", command + (["--any-port"] if any_port else []), (), os.environ.copy())


def _start(
    home: Home, name: str, command: list[str], fds: tuple[int, ...], env: dict[str, str]
) -> subprocess.Popen[bytes]:
    log = home.logs_dir / f"{name}.log"
    try:
        own_logs.rotate(home.logs_dir)
        output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HomeUnusable(f"{log} cannot be written ({error.strerror}).") from error
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=home.root,
            env=_of_nobody(_from_anywhere(env)) | {"LOOM_HOME": str(home.root)},
            start_new_session=True,
            pass_fds=fds,
        )
    finally:
        os.close(output)


def _of_nobody(env: dict[str, str]) -> dict[str, str]:
    """A service that a worker's script started is no child of that worker: it outlives it."""
    return {name: value for name, value in env.items() if name != "LOOM_BOX"}


def _from_anywhere(env: dict[str, str]) -> dict[str, str]:
    """Make PYTHONPATH absolute: it is relative to the user's directory, and parts run elsewhere."""
    path = env.get("PYTHONPATH")
    if not path:
        return env
    return env | {"PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in path.split(os.pathsep))}
