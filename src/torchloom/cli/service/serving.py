"""Serves the API on an open socket. Separate from `weaver.py` because its imports take the longest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from torchloom import __version__
from torchloom.api.app import create_app
from torchloom.api.connections import BoundedProtocol
from torchloom.api.defaults import Defaults
from torchloom.api.ports import Control
from torchloom.api.tokens import Tokens

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""For a certificate that was replaced."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the process that runs it: one SIGTERM ends API and weaver together."""
        yield


def _stamps(certificate: Path, key: Path) -> tuple[int, ...]:
    return tuple(file.stat().st_mtime_ns for file in (certificate, key))


async def _renew(config: uvicorn.Config, certificate: Path, key: Path, used: tuple[int, ...]) -> None:
    """Use a certificate that was replaced from the next connection on; those that exist continue."""
    assert config.ssl is not None
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            now = _stamps(certificate, key)
            if now != used:
                # First elsewhere: a context that was given half of a pair can prove itself to nobody.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
                config.ssl.load_cert_chain(certificate, key)
                used = now
                log.info("the certificate of the API was replaced")
        except (OSError, ssl.SSLError) as error:
            # Perhaps only one of the two files is there yet.
            log.warning("the new certificate of the API cannot be used: %s; trying again", error)


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
    pair = (certificate, key) if certificate is not None and key is not None else None
    used = _stamps(*pair) if pair is not None else ()
    config.load()
    ending = []
    if pair is not None:
        ending.append(asyncio.create_task(_renew(config, *pair, used), name="certificate"))
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="uvicorn")
    stopping = asyncio.create_task(stop.wait(), name="api stop")
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    for task in (stopping, *ending):
        task.cancel()
    await serving
