"""The bus on a real NATS cluster: private connections, three copies, and the loss of any one server."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from nats_cluster import NatsCluster

from torchloom.bus import nats_link, nats_stream
from torchloom.bus.address import BusTls
from torchloom.bus.nats import NatsBus
from torchloom.bus.protocol import REQUEST_TIMEOUT_S
from torchloom.errors import BusUnavailable, BusUnsuitable, LoomError, UsageError

SUBJECT = "loom.v1.event.node.n1.test"
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    made = NatsCluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start_all()
        yield made
    finally:
        made.close()


async def eventually(action: Callable[[], Awaitable[object]]) -> object:
    """What a weaver does with a bus that cannot be used now: it tries again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await action()
        except LoomError as error:
            if isinstance(error, UsageError) or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


async def until(number: Callable[[], Awaitable[int]], least: int) -> None:
    """Wait until it is at least so much; 0: until it is nothing."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = await eventually(number)
        assert isinstance(found, int)
        if found >= least if least else not found:
            return
        assert time.monotonic() < deadline, f"{found} instead of {least}"
        await asyncio.sleep(0.1)


async def connected(cluster: NatsCluster, copies: int) -> NatsBus:
    return await NatsBus.connect(cluster.address(), name="test", wait_s=PATIENCE_S, copies=copies)


async def replicated(bus: NatsBus) -> dict[str, tuple[int, str, bool]]:
    """Of each stream: its copies, its leader, and whether all copies are current."""
    found = {}
    for config in nats_stream.stream_configs():
        info = await nats_stream.api(
            bus._link, f"STREAM.INFO.{config['name']}", None, timeout_s=REQUEST_TIMEOUT_S
        )
        servers = info["cluster"].get("replicas") or []
        is_current = len(servers) == info["config"]["num_replicas"] - 1 and all(s["current"] for s in servers)
        found[config["name"]] = (
            info["config"]["num_replicas"],
            info["cluster"].get("leader", ""),
            is_current,
        )
    return found


async def current(bus: NatsBus) -> dict[str, tuple[int, str, bool]]:
    async def asked() -> dict[str, tuple[int, str, bool]]:
        found = await replicated(bus)
        if not all(copies == 3 and leader and is_current for copies, leader, is_current in found.values()):
            raise BusUnavailable(f"not yet: {found}")
        return found

    found = await eventually(asked)
    assert isinstance(found, dict)
    return found


def test_what_was_stored_survives_the_loss_of_any_server(cluster: NatsCluster) -> None:
    async def story() -> None:
        first = await connected(cluster, 1)
        await eventually(first.provision)
        assert {copies for copies, _, _ in (await replicated(first)).values()} == {1}
        await first.append(SUBJECT, b"before", id="before")
        await first.close()

        bus = await connected(cluster, 3)
        await eventually(bus.provision)
        stored = ["before"]
        for victim in range(3):
            await current(bus)
            cluster.kill(victim)
            for number in range(5):
                name = f"{victim}-{number}"
                await eventually(lambda name=name: bus.append(SUBJECT, name.encode(), id=name))
                stored.append(name)
            await eventually(lambda victim=victim: bus.put_object(f"of/{victim}", b"x" * 300_000))
            cluster.start(victim)
        await current(bus)
        seen = []
        async for record in bus.read(0):
            seen.append(record.data.decode())
            if len(seen) == len(stored):
                break
        assert seen == stored
        assert await eventually(lambda: bus.object_names("of/")) == ["of/0", "of/1", "of/2"]
        lease = bus.lease("weaver", "me", 5.0)
        assert await eventually(lease.acquire)
        await bus.close()

        fewer = await connected(cluster, 1)
        await eventually(fewer.provision)
        assert {copies for copies, _, _ in (await replicated(fewer)).values()} == {3}, "never fewer"
        await fewer.close()

    asyncio.run(story())


def test_nobody_gets_in_without_the_right_certificate(cluster: NatsCluster, tmp_path: Path) -> None:
    stranger = trustme.CA()
    stranger.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = stranger.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    ca, certificate, key = (str(tmp_path / f"{name}.pem") for name in ("ca", "certificate", "key"))
    own = cluster.tls

    async def refused(tls: BusTls) -> LoomError:
        with pytest.raises(LoomError) as error:
            await NatsBus.connect(cluster.address(tls), name="test")
        return error.value

    async def story() -> None:
        for tls in (
            BusTls(ca, own.certificate, own.key),  # a server that its authority does not vouch for
            BusTls(own.ca),  # a client without a certificate
            BusTls(own.ca, certificate, key),  # a client of another authority
        ):
            assert isinstance(await refused(tls), BusUnavailable)
        missing = await refused(BusTls(str(tmp_path / "none.pem")))
        assert isinstance(missing, UsageError) and "none.pem (No such file" in missing.message
        assert "belong together" in (await refused(BusTls(own.ca, own.certificate))).message

    asyncio.run(story())


def test_a_server_of_another_authority_does_not_keep_us_from_the_others(
    cluster: NatsCluster, tmp_path: Path
) -> None:
    """nats-py waits for ever for the end of a connection whose TLS failed, and tries nobody else."""
    strange = NatsCluster(tmp_path, servers=1)
    try:
        strange.start_all()

        async def story() -> None:
            both = replace(
                cluster.address(), servers=strange.address().servers + cluster.address().servers[:1]
            )
            for _ in range(6):  # it takes them in any order
                await (await NatsBus.connect(both, name="test", wait_s=PATIENCE_S)).close()

        asyncio.run(story())
    finally:
        strange.close()


def test_one_server_cannot_keep_three_copies(tmp_path: Path) -> None:
    alone = NatsCluster(tmp_path, servers=1)
    try:
        alone.start_all()

        async def story() -> None:
            bus = await connected(alone, 3)
            with pytest.raises(BusUnsuitable, match="cannot keep 3 copies"):
                await bus.provision()
            await bus.close()

        asyncio.run(story())
    finally:
        alone.close()


def test_disks_smaller_than_the_streams_limit_are_enough(tmp_path: Path) -> None:
    """The limit is more than these servers may store: the stream is bounded by the disks then."""
    cluster = NatsCluster(tmp_path, room=64 << 20)

    async def provisioned() -> tuple[int, int]:
        bus = await connected(cluster, 3)
        try:
            for _ in range(2):  # the first time they are made, the second time looked after
                await eventually(bus.provision)
            await eventually(lambda: bus.append(SUBJECT, b"stored", id="1"))
            await until(lambda: bus.behind("n1"), 0)
            cluster.kill(1)
            await until(lambda: bus.behind("n1"), 1)
            return (await bus.stored()).most_bytes, (await replicated(bus))[nats_stream.EVENT_STREAM][0]
        finally:
            await bus.close()

    try:
        cluster.start_all()
        assert asyncio.run(provisioned()) == (0, 3)
    finally:
        cluster.close()


def test_a_server_that_falls_silent_is_left_at_once(
    cluster: NatsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its host is cut off. Over TLS a polite end of the connection waits for the other side."""
    monkeypatch.setattr(nats_link, "PING_EVERY_S", 0.2)

    async def run() -> float:
        bus = await connected(cluster, 3)
        back = asyncio.Event()

        async def is_back() -> None:
            back.set()

        try:
            await eventually(bus.provision)
            bus.on_reconnect.append(is_back)
            pid = cluster.pid_at(bus._link._client.connected_url.port)
            os.kill(pid, signal.SIGSTOP)
            try:
                began_s = time.monotonic()
                await asyncio.wait_for(back.wait(), PATIENCE_S)
                return time.monotonic() - began_s
            finally:
                os.kill(pid, signal.SIGCONT)
        finally:
            await bus.close()

    assert asyncio.run(run()) < asyncio.constants.SSL_SHUTDOWN_TIMEOUT / 2


def test_a_connection_comes_back_after_the_authority_was_replaced(tmp_path: Path) -> None:
    """The files are read anew for each try: a long-lived client knows only the authority that is gone."""
    one = NatsCluster(tmp_path, servers=1)
    one.start_all()

    async def run() -> None:
        bus = await connected(one, 1)
        back = asyncio.Event()

        async def is_back() -> None:
            back.set()

        try:
            bus.on_reconnect.append(is_back)
            one.kill(0)
            one.renew()
            one.start(0)
            await asyncio.wait_for(back.wait(), PATIENCE_S)
        finally:
            await bus.close()

    try:
        asyncio.run(run())
    finally:
        one.close()
