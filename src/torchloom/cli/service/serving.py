"""Serves the API on an open socket. Separate from `weaver.py` because its imports take the longest."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from torchloom import __version__
from torchloom.api.app import create_app
from torchloom.api.connections import BoundedProtocol
from torchloom.api.defaults import Defaults
from torchloom.api.ports import Control
from torchloom.api.tokens import Tokens


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the process that runs it: one SIGTERM ends API and weaver together."""
        yield


async def serve_api(
    control: Control,
    tokens: Tokens,
    listener: socket.socket,
    hosts: frozenset[str],
    stop: asyncio.Event,
    *,
    defaults: Defaults | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
) -> None:
    """Serve until `stop` is set; close open streams after a second, because clients resume them."""
    app = create_app(control, tokens, __version__, hosts, defaults)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=60,
        http=BoundedProtocol,
        server_header=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="uvicorn")
    stopping = asyncio.create_task(stop.wait(), name="api stop")
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving
