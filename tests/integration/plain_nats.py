"""A NATS server that is not ours, on a port that it finds itself: one found for it may be taken by then.

Owns the process. It has no credentials, and JetStream only if a directory is given for it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from loom_home import wait_for

from torchloom.bus.nats_binary import find_server


@contextlib.contextmanager
def plain_nats(directory: Path, jetstream: Path | None = None) -> Iterator[int]:
    """Its port, for as long as it runs. `directory` is for its own files."""
    command = [str(find_server()), "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(directory)]
    if jetstream is not None:
        command += ["-js", "-sd", str(jetstream)]
    with (directory / "nats.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    told = directory / f"nats-server_{server.pid}.ports"

    def port() -> int:
        assert server.poll() is None, (directory / "nats.log").read_text()
        try:
            (address,) = json.loads(told.read_text())["nats"]
        except (OSError, ValueError):  # not there yet, or half of it
            return 0
        return int(address.rpartition(":")[2])

    try:
        yield wait_for(port, "a NATS server that listens")
    finally:
        server.kill()
        server.wait()
