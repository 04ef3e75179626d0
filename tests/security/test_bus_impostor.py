"""A neighbour takes the bus's port in the moment after nats-server dies, and waits for us to sign in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import as_neighbour, neighbour
from loom_home import wait_for
from nats.aio.transport import TcpTransport

from torchloom import peer
from torchloom.bus.embedded import EmbeddedNats
from torchloom.bus.nats import NatsBus
from torchloom.errors import BusUnavailable, PortTaken

IMPOSTOR = """
import json, socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen()
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    info = {"server_id": "x", "server_name": sys.argv[2], "version": "2.15.1", "max_payload": 1048576,
            "headers": True, "auth_required": True, "nonce": "abc"}
    connection.sendall(b"INFO " + json.dumps(info).encode() + b"\\r\\n")
    connection.settimeout(5)
    try:
        got = connection.recv(65536)
        connection.sendall(b"PONG\\r\\n")
    except OSError:
        got = b""
    print(json.dumps(got.decode(errors="replace")), flush=True)
    connection.close()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedNats]:
    found = EmbeddedNats(tmp_path / "nats", "n1")
    found.prepare()
    yield found
    found.stop()


@pytest.fixture
def impostor(server: EmbeddedNats) -> Iterator[subprocess.Popen[str]]:
    name = json.loads((server.directory / "identity.json").read_bytes())["server_name"]
    process = as_neighbour(IMPOSTOR, str(server.port), name)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "listening"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("role", ["weaver", "agent"])
def test_an_impostor_gets_no_secret_and_no_connection(
    server: EmbeddedNats, impostor: subprocess.Popen[str], role: str
) -> None:
    address = server.address(role)  # type: ignore[arg-type]
    with pytest.raises(BusUnavailable, match=f"user {neighbour()}"):
        asyncio.run(NatsBus.connect(address, name="us"))
    assert impostor.stdout is not None
    got = json.loads(impostor.stdout.readline())
    assert got == "", "not one byte was sent to the stranger"


def test_the_start_of_our_server_says_whose_program_is_in_the_way(
    server: EmbeddedNats, impostor: subprocess.Popen[str]
) -> None:
    with pytest.raises(PortTaken, match=f"a program of user {neighbour()}"):
        server.start()
    with pytest.raises(BusUnavailable):
        server.wait_ready(timeout_s=0.5)


def test_an_impostor_between_two_lives_of_the_server_is_not_reconnected_to(server: EmbeddedNats) -> None:
    """nats-py reconnects by itself; each reconnect asks again who is there."""
    process = server.start()
    server.wait_ready(120)
    name = json.loads((server.directory / "identity.json").read_bytes())["server_name"]

    async def scene() -> None:
        bus = await NatsBus.connect(server.address("agent"), name="us", wait_s=120)
        process.kill()
        process.wait()
        stranger = as_neighbour(IMPOSTOR, str(server.port), name)
        assert stranger.stdout is not None
        try:
            assert stranger.stdout.readline().strip() == "listening"
            got = json.loads(await asyncio.to_thread(stranger.stdout.readline))
            assert got == "" and not bus.connected
        finally:
            stranger.kill()
            stranger.communicate()
            await bus.close()

    asyncio.run(scene())


def test_a_closed_client_stays_closed_although_its_cancellation_was_lost(
    server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wait_for` loses a cancellation that arrives in the moment a connection is refused (Python 3.11)."""
    process = server.start()
    server.wait_ready(120)
    tries = 0

    async def refused(*_: object, **__: object) -> None:
        nonlocal tries
        tries += 1
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        raise ConnectionRefusedError

    async def scene() -> None:
        bus = await NatsBus.connect(server.address("agent"), name="us", wait_s=120)
        monkeypatch.setattr(TcpTransport, "connect", refused)
        process.kill()
        process.wait()
        while not tries:
            await asyncio.sleep(0.01)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await bus.close()
        await asyncio.wait(others, timeout=120)
        assert not [task for task in others if not task.done()]

    asyncio.run(scene())


def test_the_servers_files_hold_no_secret(server: EmbeddedNats) -> None:
    secrets = {server.address(role).seed for role in ("weaver", "agent")}
    assert len(secrets) == 2 and all(secrets)
    assert not any(secret in server.config_file.read_text() for secret in secrets)


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::")]
)
def test_the_owner_of_the_other_end_is_known_before_and_after_it_is_accepted(
    family: socket.AddressFamily, host: str
) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip("this host has no IPv6")
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1" if host != "::1" else host, port)) as connection:
            assert peer.owner_of_peer(connection) == os.geteuid()
            accepted, _ = listener.accept()
            with accepted:
                assert peer.owner_of_peer(connection) == os.geteuid()
                assert peer.owner_of_peer(accepted) == os.geteuid()


def test_a_neighbours_listener_is_a_neighbours() -> None:
    code = """
import socket
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
print(listener.getsockname()[1], flush=True)
input()
kept = listener.accept(); print("accepted", flush=True)
input()
"""
    process = as_neighbour(code)
    assert process.stdout is not None and process.stdin is not None
    try:
        port = int(process.stdout.readline())
        assert peer.listener_owner("127.0.0.1", port) == neighbour()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            assert peer.owner_of_peer(connection) == neighbour(), "in the listener's queue"
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline().strip() == "accepted"
            assert peer.owner_of_peer(connection) == neighbour()
        assert wait_for(lambda: peer.listener_owner("127.0.0.1", port) == neighbour(), "the same")
    finally:
        process.kill()
        process.communicate()
