"""Connections that say nothing, tokens that were revoked, cookies that were copied, headers for browsers."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import TOKEN, ApiServer, api_server

from torchloom.api import access_guard, connections
from torchloom.api.access_guard import COOKIE
from torchloom.api.tokens import Tokens


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    monkeypatch.setattr(connections.BoundedProtocol, "headers_within_s", 0.3)
    monkeypatch.setattr(connections, "MOST", 40)
    monkeypatch.setattr(access_guard, "LOOK_AGAIN_S", 0.0)
    with api_server(tokens_file=tmp_path / "tokens.json") as made:
        yield made


def closed_by_server(client: socket.socket) -> bool:
    client.settimeout(60)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"G"])
def test_a_connection_that_sends_no_whole_request_is_closed(server: ApiServer, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(sent)
        assert closed_by_server(client)


def test_hundreds_of_silent_connections_do_not_keep_others_out(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections.BoundedProtocol, "headers_within_s", 600.0)
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    try:
        for _ in range(5):
            assert server.request("GET", "/jobs")[0] == 200
    finally:
        for client in silent:
            client.close()


def test_a_revoked_token_ends_its_open_stream(server: ApiServer) -> None:
    bob = server.request("POST", "/tokens", {"name": "bob", "role": "read"})[2]["token"]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
    connection.request(
        "GET", "/events", headers={"Authorization": f"Bearer {bob}", "Accept": "text/event-stream"}
    )
    answer = connection.getresponse()
    assert answer.status == 200 and "event-stream" in answer.headers["content-type"]
    ended = threading.Event()

    def read() -> None:
        while answer.read1(65536):
            pass
        ended.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert server.request("DELETE", "/tokens/bob")[0] == 204
    deadline = time.monotonic() + 60
    while not ended.wait(0.05) and time.monotonic() < deadline:
        server.request("POST", "/jobs", {"command": ["true"]})  # something to be told to whoever follows
    assert ended.is_set()
    connection.close()


def test_a_logout_ends_the_cookie_everywhere_and_over_restarts(server: ApiServer) -> None:
    _, headers, _ = server.request("POST", "/login", {"token": TOKEN}, token=None)
    cookie = headers["set-cookie"].partition(";")[0]
    _, headers, _ = server.request("POST", "/login", {"token": TOKEN}, token=None)
    other = headers["set-cookie"].partition(";")[0]
    assert cookie != other
    ours = f"http://127.0.0.1:{server.port}"
    assert server.request("GET", "/jobs", token=None, Cookie=cookie)[0] == 200
    assert server.request("POST", "/logout", token=None, Cookie=cookie, Origin=ours)[0] == 204
    assert server.request("GET", "/jobs", token=None, Cookie=cookie)[0] == 401
    assert server.request("GET", "/jobs", token=None, Cookie=other)[0] == 200, "other sessions last"
    again = Tokens(TOKEN, server._tokens_file)
    assert again.session(cookie.removeprefix(f"{COOKIE}="), time.time()) is None, "over a restart, too"
    assert again.session(other.removeprefix(f"{COOKIE}="), time.time()) is not None


def test_every_answer_has_headers_that_keep_browsers_from_mischief(server: ApiServer) -> None:
    for path, token in (("/jobs", TOKEN), ("/jobs", "wrong"), ("/nowhere", TOKEN), ("/health", None)):
        _, headers, _ = server.request("GET", path, token=token)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
