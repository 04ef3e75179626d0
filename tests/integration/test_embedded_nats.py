"""The embedded server as a process: lock, port, credentials, and one sentence for all that is unsuitable."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from plain_nats import plain_nats

from torchloom.bus import nats_stream
from torchloom.bus.address import BusAddress
from torchloom.bus.embedded import EmbeddedNats
from torchloom.bus.nats import NatsBus
from torchloom.bus.nats_binary import find_server, packaged, version_of
from torchloom.bus.nats_config import OBJECT_BUCKET
from torchloom.bus.nats_link import Link
from torchloom.errors import (
    BusUnavailable,
    BusUnsuitable,
    HomeUnusable,
    NotFound,
    PortTaken,
    StoreInUse,
    UsageError,
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedNats]:
    server = EmbeddedNats(tmp_path / "nats", "n1")
    yield server
    if server.directory.exists():
        server.stop()


def with_bus(address: BusAddress, use: Callable[[NatsBus], Awaitable[object]]) -> object:
    async def play() -> object:
        bus = await NatsBus.connect(address, name="test", wait_s=120)
        try:
            return await use(bus)
        finally:
            await bus.close()

    return asyncio.run(play())


async def append_one(bus: NatsBus) -> int:
    await bus.provision()
    return await bus.append("loom.v1.event.weaver", b"", id=str(time.time_ns()))


def one_sentence(error: BaseException) -> bool:
    return "\n" not in str(error) and "Traceback" not in str(error)


def test_restart_keeps_port_credentials_and_events(server: EmbeddedNats) -> None:
    server.start()
    server.wait_ready(120)
    before = server.address("weaver"), server.address("agent")
    assert with_bus(before[0], append_one) == 1
    server.stop()
    again = EmbeddedNats(server.directory, "n1")
    again.start()
    again.wait_ready(120)
    try:
        assert (again.address("weaver"), again.address("agent")) == before
        assert with_bus(before[0], append_one) == 2
    finally:
        again.stop()


def test_usable_again_after_sigkill(server: EmbeddedNats) -> None:
    for expected in (1, 2, 3):
        process = server.start()
        server.wait_ready(120)
        assert with_bus(server.address("weaver"), append_one) == expected
        process.kill()
        process.wait()
        assert not server.running()
        assert server.pid() is None


def test_a_second_server_on_one_store_is_refused(server: EmbeddedNats) -> None:
    server.start()
    server.wait_ready(120)
    second = EmbeddedNats(server.directory, "n1")
    assert second.running()
    with pytest.raises(StoreInUse, match="already runs on") as caught:
        second.start()
    assert one_sentence(caught.value)
    assert with_bus(server.address("weaver"), append_one) == 1


def test_the_lock_lives_and_dies_with_the_server_not_with_its_starter(server: EmbeddedNats) -> None:
    starter = f"""
import sys, pathlib
from torchloom.bus.embedded import EmbeddedNats
server = EmbeddedNats(pathlib.Path({str(server.directory)!r}), "n1")
server.start(); server.wait_ready(120)
print(server.pid(), flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", starter],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate()
    assert server.running(), "the server outlives whoever started it"
    assert server.pid() == pid
    with pytest.raises(StoreInUse):
        server.start()
    assert with_bus(server.address("weaver"), append_one) == 1
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while server.running() and time.monotonic() < deadline:
        time.sleep(0.01)
    server.start()
    server.wait_ready(120)
    assert with_bus(server.address("weaver"), append_one) == 2


def test_stop_ends_a_server_of_another_process_and_a_stopped_one(server: EmbeddedNats) -> None:
    process = server.start()
    server.wait_ready(120)
    process.send_signal(signal.SIGSTOP)
    other = EmbeddedNats(server.directory, "n1")
    other.stop(timeout_s=0.5)
    other.stop()
    assert process.wait(60) == -signal.SIGKILL


def test_homes_do_not_all_want_the_same_port(tmp_path: Path) -> None:
    """One that is just being restarted must not find its port taken by one that starts for the first time."""
    ports = set()
    for number in range(4):
        server = EmbeddedNats(tmp_path / f"home-{number}" / "nats", "n1")
        server.prepare()
        ports.add(server.port)
    assert len(ports) > 1


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path / "nats", "n1")
    server.prepare()
    with socket.socket() as other_program:
        other_program.bind(("127.0.0.1", server.port))
        other_program.listen()
        with pytest.raises(PortTaken, match=f"127.0.0.1:{server.port}") as caught:
            server.start()
        assert one_sentence(caught.value)
        assert not server.running(), "the lock is free again"
    server.start()
    server.wait_ready(120)
    server.stop()


def test_another_server_on_our_port_is_not_taken_for_ours(server: EmbeddedNats, tmp_path: Path) -> None:
    server.prepare()
    stranger = subprocess.Popen(
        [find_server(), "-a", "127.0.0.1", "-p", str(server.port)], stderr=subprocess.DEVNULL
    )
    try:
        with pytest.raises(BusUnavailable):
            server.wait_ready(timeout_s=0.5)
    finally:
        stranger.kill()
        stranger.wait()


def test_secrets_are_in_private_files_only(server: EmbeddedNats) -> None:
    process = server.start()
    server.wait_ready(120)
    secrets = [server.address("weaver").seed, server.address("agent").seed]
    assert len(set(secrets)) == 2 and all(len(secret) >= 32 for secret in secrets)
    with_bus(server.address("agent"), lambda bus: bus.publish("loom.v1.telemetry.n1", b""))
    for path in server.directory.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, f"{path} is {mode:o}"
        if path.is_file() and path.name != "identity.json":
            assert not any(secret.encode() in path.read_bytes() for secret in secrets), path
    assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700
    seen = (
        Path(f"/proc/{process.pid}/cmdline").read_bytes() + Path(f"/proc/{process.pid}/environ").read_bytes()
    )
    shown = (
        seen.decode(),
        repr(server.address("weaver")),
        str(server.address("agent")),
        str(server.command()),
    )
    assert not any(secret in text for secret in secrets for text in shown)


def test_the_server_is_reached_by_loopback_only(server: EmbeddedNats) -> None:
    server.start()
    server.wait_ready(120)
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    ours = [
        line.split()[1]
        for line in listening.splitlines()
        if f":{server.port:04X} " in line and " 0A " in line
    ]
    assert ours == [f"0100007F:{server.port:04X}"]


def test_a_home_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for directory in (tmp_path / "file" / "nats", Path("/proc/loom-cannot-be-here"), Path("/sys/loom")):
        with pytest.raises(HomeUnusable) as caught:
            EmbeddedNats(directory, "n1").start()
        assert one_sentence(caught.value)


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True
    ).returncode:
        pytest.skip("mounting needs rights this user does not have")
    try:
        server = EmbeddedNats(small / "nats", "n1")
        server.prepare()
        with (small / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError):
            while True:
                ballast.write(bytes(4096))
        with pytest.raises((HomeUnusable, BusUnavailable)) as caught:
            server.start()
            server.wait_ready()
            with_bus(server.address("weaver"), append_one)
        assert one_sentence(caught.value)
        server.stop()
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_damaged_identity_is_one_sentence(server: EmbeddedNats) -> None:
    with pytest.raises(HomeUnusable, match="never prepared"):
        server.address("weaver")
    server.prepare()
    (server.directory / "identity.json").write_text('{"port":')
    with pytest.raises(HomeUnusable) as caught:
        server.start()
    assert one_sentence(caught.value)
    assert not server.running()


def test_bad_node_names_never_reach_the_permissions(tmp_path: Path) -> None:
    for node in ("", "a.b", "*", ">", "a b", 'a"b', "ü", "a" * 129):
        with pytest.raises(UsageError):
            EmbeddedNats(tmp_path, node)


def test_a_server_without_jetstream_is_unsuitable(tmp_path: Path) -> None:
    with plain_nats(tmp_path) as port, pytest.raises(BusUnsuitable, match="no JetStream") as caught:
        with_bus(BusAddress.from_url(f"nats://127.0.0.1:{port}"), append_one)
    assert one_sentence(caught.value)


def test_nobody_there_is_unavailable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"nats://user:pass-word@127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(BusUnavailable, match="no NATS server can be reached") as caught:
            asyncio.run(NatsBus.connect(BusAddress.from_url(url), name="test"))
    assert one_sentence(caught.value)
    assert "pass-word" not in str(caught.value)


def test_something_that_is_not_nats_is_unavailable() -> None:
    async def play() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()
            writer.close()

        web = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with web:
            port = web.sockets[0].getsockname()[1]
            await NatsBus.connect(BusAddress.from_url(f"127.0.0.1:{port}"), name="test")

    with pytest.raises(BusUnavailable) as caught:
        asyncio.run(play())
    assert one_sentence(caught.value)


def test_an_old_server_is_unsuitable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A server that greets as 2.9: there is none to run here, but the greeting is all we look at."""

    async def play() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(
                b'INFO {"server_id":"x","version":"2.9.25","max_payload":1048576,"headers":true}\r\n'
            )
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
            writer.close()

        old = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with old:
            port = old.sockets[0].getsockname()[1]
            link = Link(BusAddress.from_url(f"127.0.0.1:{port}"), "test")
            await link.open(wait_s=0)

    with pytest.raises(BusUnsuitable, match=r"version 2\.9\.25"):
        asyncio.run(play())


def test_the_binary_of_our_package_is_preferred_and_path_is_the_fallback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What happens to be on PATH is not what was tested, and may be anybody's."""
    in_package = packaged()
    assert in_package is not None and version_of(in_package)
    fake = tmp_path / "nats-server"

    def says(text: str) -> Path:
        fake.write_text(f"#!/bin/sh\n{text}\n")
        fake.chmod(0o755)
        return find_server()

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert says("echo nats-server: v2.99.0") == in_package
    monkeypatch.setattr("torchloom.bus.nats_binary.PACKAGE", "a-package-nobody-has")
    assert says("echo nats-server: v2.99.0") == fake
    with pytest.raises(BusUnsuitable, match=r"2\.9\.25"):
        says("echo nats-server: v2.9.25")
    with pytest.raises(NotFound):
        says("exit 1")


def test_what_is_deleted_leaves_nothing_in_the_object_store(server: EmbeddedNats) -> None:
    """Neither chunks nor notes about them: a service that has seen a million jobs holds the present ones."""
    server.start()
    server.wait_ready(120)

    async def use(bus: NatsBus) -> None:
        await bus.provision()
        await bus.put_object("snapshot", os.urandom(200_000))
        before = await objects(bus)
        for number in range(20):
            await bus.put_object(f"env.{number}", os.urandom(200_000))
        assert (await objects(bus))["bytes"] > before["bytes"] + 20 * 200_000
        for number in range(20):
            await bus.delete_object(f"env.{number}")
        after = await objects(bus)
        assert (after["messages"], after["bytes"]) == (before["messages"], before["bytes"])

    with_bus(server.address("weaver"), use)


@pytest.mark.timeout(900)
def test_the_disk_shrinks_after_objects_were_deleted(server: EmbeddedNats) -> None:
    """nats-server removes a block (8 MiB) once nothing of it is needed, and rewrites others a while later."""
    server.start()
    server.wait_ready(120)

    def used() -> int:
        files = [path for path in server.directory.rglob("*.blk") if "OBJ_" in str(path)]
        return sum(path.stat().st_size for path in files)

    async def use(bus: NatsBus) -> None:
        await bus.provision()
        for number in range(200):
            await bus.put_object(f"env.{number}", os.urandom(200_000))
        full = used()
        assert full > 200 * 200_000
        for number in range(200):
            await bus.delete_object(f"env.{number}")
        deadline = time.monotonic() + 600
        while used() > full / 3 and time.monotonic() < deadline:
            await asyncio.sleep(1)
        assert used() < full / 3

    with_bus(server.address("weaver"), use)


async def objects(bus: NatsBus) -> dict[str, int]:
    info = await nats_stream.api(bus._link, f"STREAM.INFO.OBJ_{OBJECT_BUCKET}", None, 5.0)
    return dict(info["state"])


@pytest.mark.parametrize(
    "name", ["with space", "accént ünd ß", 'quo"te', "back\\slash", "it's", "🚀 $HOME ${x}"]
)
def test_a_home_may_be_called_anything(tmp_path: Path, name: str) -> None:
    server = EmbeddedNats(tmp_path / name / "nats", "n1")
    server.start()
    try:
        server.wait_ready(120)
        assert with_bus(server.address("weaver"), append_one) == 1
        assert (server.directory / "jetstream" / "jetstream").is_dir(), "the store is where it should be"
        assert server.pid() is not None
    finally:
        server.stop()
