"""The embedded nats-server: one process of our own on loopback, with its store, port and credentials.

Owns a directory: `nats.conf` and `identity.json` (0600), `jetstream/` (the store), `lock`, logs. The same
port and credentials come back after every restart, because running agents know them.

The lock on the directory is held by the server process itself, through an inherited descriptor: it is free
exactly when the server is dead, no matter which process started it and whether that process still lives.

It does not restart the server (the supervisor does) and does not speak NATS beyond the greeting.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torchloom import peer
from torchloom.bus import nats_config
from torchloom.bus.address import BusAddress
from torchloom.bus.keys import new_seed, public_key
from torchloom.bus.nats_binary import find_server
from torchloom.errors import BusUnavailable, Conflict, HomeUnusable, PortTaken, StoreInUse
from torchloom.home import private_directory

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below those the kernel gives to outgoing connections, so that ours is still free after a restart."""
LOOK_EVERY_S = 0.01
LOCK_PATIENCE_S = 0.2
MOST_GREETING_BYTES = 64 * 1024

Role = Literal["weaver", "agent"]
ROLES: tuple[Role, ...] = ("weaver", "agent")


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What stays the same over restarts."""

    server_name: str
    port: int
    seeds: dict[str, str] = field(repr=False)
    """A secret key for each role. The server is given only the public halves."""


class EmbeddedNats:
    def __init__(self, directory: Path, node: str) -> None:
        self.directory = Path(directory).absolute()
        self.node = nats_config.check_node(node)
        self.host = HOST
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def config_file(self) -> Path:
        return self.directory / "nats.conf"

    @property
    def log_file(self) -> Path:
        """The server's log, bounded by the server."""
        return self.directory / "nats.log"

    @property
    def output_file(self) -> Path:
        """What the server printed before it had read its configuration."""
        return self.directory / "output.log"

    @property
    def _identity_file(self) -> Path:
        return self.directory / "identity.json"

    # ---- who and where ----

    @property
    def port(self) -> int:
        return self._identity().port

    @property
    def url(self) -> str:
        """Without credentials."""
        return f"nats://{HOST}:{self.port}"

    def address(self, role: Role) -> BusAddress:
        """How a part of that role connects. Only after `prepare` was called once in this directory."""
        match role:
            case "weaver":
                inbox, leader = nats_config.WEAVER_INBOX, ""
            case "agent":
                inbox, leader = nats_config.agent_inbox(self.node), nats_config.LEADER
        seed = self._identity().seeds[role]
        return BusAddress((self.url,), seed=seed, owner=os.geteuid(), inbox_prefix=inbox, leader=leader)

    def command(self) -> list[str]:
        """No secret in it: everyone may read a process list."""
        return [str(find_server()), "-c", str(self.config_file)]

    def _identity(self) -> ServerIdentity:
        try:
            found: dict[str, Any] = json.loads(self._identity_file.read_bytes())
            seeds: dict[str, str] = {role: str(found["seeds"][role]) for role in ROLES}
            return ServerIdentity(str(found["server_name"]), int(found["port"]), seeds)
        except FileNotFoundError:
            raise HomeUnusable(f"{self.directory} was never prepared for NATS", hint="run loom up") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HomeUnusable(
                f"{self._identity_file} cannot be read ({error})",
                hint="restore it, or remove it and restart all parts",
            ) from None

    # ---- life ----

    def prepare(self) -> None:
        """Make directory, identity and configuration. Idempotent; keeps the identity that is there."""
        private_directory(self.directory)
        private_directory(self.directory / "jetstream")
        if not self._identity_file.exists():
            value = {
                "server_name": f"loom-{secrets.token_hex(4)}",
                "port": choose_port(),
                "seeds": {role: new_seed() for role in ROLES},
            }
            self._write_private(self._identity_file, json.dumps(value))
        identity = self._identity()
        self._write_private(
            self.config_file,
            nats_config.render(
                server_name=identity.server_name,
                port=identity.port,
                store_dir=str(self.directory / "jetstream"),
                log_file=str(self.log_file),
                weaver=public_key(identity.seeds["weaver"]),
                agents={self.node: public_key(identity.seeds["agent"])},
            ),
        )

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server in its own session, holding the lock. Raises StoreInUse, PortTaken, HomeUnusable.

        Returns at once: call `wait_ready`. The caller reaps the process.
        """
        lock = self._lock()
        try:
            self.prepare()
            self._check_port_free()
            output = os.open(self.output_file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                self._process = subprocess.Popen(
                    self.command(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self.directory,
                    # Nothing of ours, least of all LOOM_TOKEN.
                    env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
                    start_new_session=True,
                    pass_fds=(lock,),
                    umask=0o077,
                )
            finally:
                os.close(output)
        except OSError as error:
            raise HomeUnusable(
                f"nats-server cannot be started in {self.directory} ({error.strerror})"
            ) from error
        finally:
            os.close(lock)
        return self._process

    def wait_ready(self, timeout_s: float = 10.0) -> None:
        """Block until *our* server answers; say in one sentence why it does not. Takes about 50 ms."""
        identity = self._identity()
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (
                _greeting(self.host, identity.port, deadline - time.monotonic()).get("server_name")
                == identity.server_name
            ):
                return
            if self._process is not None and self._process.poll() is not None:
                raise self._why_dead(self._process.returncode)
            time.sleep(LOOK_EVERY_S)
        raise BusUnavailable(
            f"nats-server did not answer on {self.host}:{identity.port} within {timeout_s:g} s",
            hint=f"see {self.log_file}",
        )

    def running(self) -> bool:
        """Whether a server runs on this store, no matter who started it: true while one holds the lock."""
        try:
            lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def pid(self) -> int | None:
        """The running server's pid, also of one that another process started; None if none runs."""
        if not self.running():
            return None
        # Looked up instead of written down: a pid file is stale after SIGKILL and missing on a full disk.
        ours = [b"-c", os.fsencode(self.config_file), b""]
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cmdline").read_bytes().split(b"\0")[1:] == ours:
                    return int(entry.name)
            except OSError:
                continue  # it has just ended, or is not ours to look at
        return None

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the server on this store, no matter who started it: SIGTERM, then SIGKILL. Idempotent."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            pid = self.pid()
            if pid is not None:
                try:
                    os.kill(pid, sign)
                except ProcessLookupError:
                    pass
            deadline = time.monotonic() + timeout_s
            while self.running() and time.monotonic() < deadline:
                time.sleep(LOOK_EVERY_S)
        if self._process is not None:
            self._process.wait(timeout_s)
        if self.running():
            raise Conflict(f"the nats-server on {self.directory} does not end", hint="kill it by hand")

    def _lock(self) -> int:
        """The locked descriptor. The lock belongs to it and its copies, not to a process."""
        private_directory(self.directory)
        lock = os.open(self.directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        # `running` of another process takes the lock too, for an instant.
        deadline = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(LOOK_EVERY_S)
                    continue
                os.close(lock)
                raise StoreInUse(
                    f"a nats-server already runs on {self.directory}",
                    hint="use that one, or stop it with loom down",
                ) from None

    def _check_port_free(self) -> None:
        if not _is_free(self.port, self.host):
            raise self._port_taken()

    def _port_taken(self) -> PortTaken:
        owner = peer.listener_owner(self.host, self.port)
        who = "another program" if owner in (None, os.geteuid()) else f"a program of user {owner}"
        return PortTaken(
            f"{who} listens on {self.host}:{self.port}, the port of this home's NATS",
            hint=f"stop it, or remove {self._identity_file} to choose a new port"
            if self._identity_file.exists()
            else "stop it",
        )

    def _write_private(self, path: Path, text: str) -> None:
        """Replace a file whole, readable by us alone from its first byte on."""
        new = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            descriptor = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise HomeUnusable(
                f"{path} cannot be written ({error.strerror})", hint="free space or set LOOM_HOME"
            ) from (error)

    def _why_dead(self, returncode: int) -> Exception:
        lines = [line for file in (self.output_file, self.log_file) for line in _last_lines(file)]
        said = next(
            (line for line in reversed(lines) if "[FTL]" in line or "[ERR]" in line), (lines or [""])[-1]
        )
        said = said.rpartition("] ")[2]
        if "address already in use" in said:
            return self._port_taken()
        if "no space left" in said or "read-only file system" in said or "permission denied" in said:
            return HomeUnusable(
                f"nats-server cannot use {self.directory} ({said})", hint="free space or set LOOM_HOME"
            )
        return BusUnavailable(
            f"nats-server ended with status {returncode} ({said or 'it printed nothing'})",
            hint=f"see {self.log_file}",
        )


def choose_port() -> int:
    """Any free one: if all homes wanted 4222, one could lose it to another while its server is down."""
    for port in random.sample(PORTS, 100):
        if _is_free(port):
            return port
    raise PortTaken(f"no port is free on {HOST}", hint="close some programs that listen")


def _is_free(port: int, host: str = HOST) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As the server does: a port whose last connections only linger is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def _greeting(host: str, port: int, timeout_s: float) -> dict[str, Any]:
    """What a NATS server says to a new connection; nothing if there is none."""
    try:
        with socket.create_connection((host, port), timeout=max(0.05, min(1.0, timeout_s))) as connection:
            line = connection.makefile("rb").readline(MOST_GREETING_BYTES)
            if not peer.is_ours(connection):
                return {}
        found: dict[str, Any] = json.loads(line.removeprefix(b"INFO "))
        return found
    except (OSError, ValueError):
        return {}


def _last_lines(path: Path, count: int = 20) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []
