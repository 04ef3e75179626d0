"""After a crash or reboot a neighbour listens on the port our home remembers, and waits for the token."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hostile import as_neighbour, neighbour

from torchloom.client import Client, Endpoint, NotAnswering
from torchloom.errors import NotAllowed
from torchloom.home import Home

THIEF = """
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
accepts = sys.argv[1] == "accepts"
if not accepts:
    input()
connection, _ = listener.accept()
connection.settimeout(60)
print(json.dumps(connection.recv(65536).decode()), flush=True)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in ("LOOM_ADDRESS", "LOOM_TOKEN", "LOOM_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    home = Home(tmp_path / "home")
    home.prepare()
    home.token_file.write_text("our-admin-token\n")
    return home


def remember(home: Home, port: int) -> None:
    (home.parts_dir / "plan.json").write_text(json.dumps({"port": port}))


@pytest.mark.parametrize("how", ["accepts", "waits"])
@pytest.mark.parametrize("where", ["plan", "LOOM_ADDRESS"])
def test_the_token_is_not_sent_to_a_neighbour(
    home: Home, how: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    thief = as_neighbour(THIEF, how)
    assert thief.stdout is not None and thief.stdin is not None
    try:
        port = int(thief.stdout.readline())
        remember(home, port)
        if where == "LOOM_ADDRESS":
            monkeypatch.setenv("LOOM_ADDRESS", f"127.0.0.1:{port}")
        refused = pytest.raises(NotAllowed, match=f"user {neighbour()}")
        with Client(Endpoint.find(home), timeout_s=20.0) as client, refused as caught:
            client.jobs()
        assert "our-admin-token" not in str(caught.value)
        if how == "waits":
            thief.stdin.write("\n")
            thief.stdin.flush()
        assert json.loads(thief.stdout.readline()) == "", "not one byte was sent"
    finally:
        thief.kill()
        thief.communicate()


class _Ours(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def ours() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), _Ours)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_our_own_service_is_spoken_to(home: Home, ours: int) -> None:
    remember(home, ours)
    with Client(Endpoint.find(home), timeout_s=60.0) as client:
        assert client.jobs() == [] and client.jobs() == []


def test_nobody_there_is_still_nobody_there(home: Home) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        remember(home, probe.getsockname()[1])
        with Client(Endpoint.find(home), timeout_s=1.0) as client, pytest.raises(NotAnswering):
            client.jobs()


def test_a_token_that_somebody_names_for_an_address_is_theirs_to_send(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("LOOM_TOKEN", "given")
    assert Endpoint.find(home).owner is None
    monkeypatch.delenv("LOOM_TOKEN")
    assert Endpoint.find(home).owner == os.geteuid()


def test_the_command_line_says_so_in_one_sentence(home: Home) -> None:
    thief = as_neighbour(THIEF, "accepts")
    assert thief.stdout is not None
    try:
        remember(home, int(thief.stdout.readline()))
        loom = Path(sys.executable).parent / "loom"
        env = {**os.environ, "LOOM_HOME": str(home.root), "NO_COLOR": "1"}
        done = subprocess.run([str(loom), "ps"], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == NotAllowed.exit_code
        assert "no token was sent" in done.stderr and done.stderr.count("\n") <= 2
        assert "Traceback" not in done.stderr
    finally:
        thief.kill()
        thief.communicate()
