"""A cluster as a person makes it: `loom cluster init`, `loom up`, `loom join`, `loom node revoke`, `loom ca`.
Real servers, real TLS handshakes."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from control_hosts import NAMES, ControlHosts
from loom_home import LOOM, wait_for

from torchloom.bus.address import BusAddress, BusTls
from torchloom.bus.nats import NatsBus
from torchloom.cli.cluster.node_files import JoinedNode, ca_file
from torchloom.errors import BusUnavailable, NotAllowed

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlHosts]:
    made = ControlHosts(tmp_path_factory.mktemp("hosts"))
    try:
        made.start_all()
        yield made
    finally:
        made.close()


def node(cluster: ControlHosts, name: str, at: str = "b") -> dict[str, Any]:
    found = {one["id"]: one for one in cluster.homes[at].json("nodes")}
    view: dict[str, Any] = found.get(name, {})
    return view


def health(cluster: ControlHosts, name: str) -> dict[str, Any]:
    from torchloom.client import Client, Endpoint

    api = Client(Endpoint.of_home(cluster.homes[name].home), timeout_s=60)
    try:
        return dict(api.health())
    finally:
        api.close()


async def refused(address: BusAddress, known: BusAddress) -> None:
    """A server that refuses closes the connection, mostly before its reason could be read. That it is up is
    shown by a connection with the weavers' claims."""
    for server in address.servers:
        ours = replace(
            address, servers=(server,), seed=known.seed, claims=known.claims, inbox_prefix="_INBOX"
        )
        await (await NatsBus.connect(ours, name="test", wait_s=PATIENCE_S)).close()
        with pytest.raises((NotAllowed, BusUnavailable)):
            await NatsBus.connect(replace(address, servers=(server,)), name="thief")


def test_three_hosts_start_from_what_was_printed_and_one_leads(cluster: ControlHosts) -> None:
    for name in NAMES:
        assert f"scp -r {cluster.made / name} {cluster.addresses[name]}:.torchloom/cluster" in cluster.printed
        assert f"ssh {cluster.addresses[name]} loom up" in cluster.printed
    wait_for(lambda: all(health(cluster, name)["ready"] for name in NAMES), "all weavers are ready")
    wait_for(lambda: sum(health(cluster, name)["active"] for name in NAMES) == 1, "one weaver leads")

    async def copies() -> set[int]:
        from torchloom.bus import nats_stream

        bus = await NatsBus.connect(cluster.host("a").bus("weaver", "a"), name="test", wait_s=PATIENCE_S)
        found = set()
        for config in nats_stream.stream_configs():
            info = await nats_stream.api(bus._link, f"STREAM.INFO.{config['name']}", None, 60)
            found.add(info["config"]["num_replicas"])
        await bus.close()
        return found

    assert asyncio.run(copies()) == {3}


def test_a_host_joins_reports_only_for_itself_and_is_revoked(cluster: ControlHosts) -> None:
    token = cluster.token()
    said = cluster.join("gpu-1", token)
    assert "gpu-1 is a node of the cluster" in said
    wait_for(
        lambda: node(cluster, "gpu-1").get("state") == "ready", "the node is ready, as another host sees it"
    )
    assert "used up" in cluster.join("gpu-2", token, code=4, at="c")
    own = JoinedNode.read(cluster.nodes[-1].home)
    assert own is not None

    async def story() -> None:
        bus = await NatsBus.connect(own.bus(cluster.nodes[-1].home), name="thief", wait_s=PATIENCE_S)
        for subject in ("loom.v1.event.node.gpu-2.report", "loom.v1.event.weaver.stop"):
            with pytest.raises(NotAllowed):
                await bus.append(subject, b"x", id=subject)
        for subject in ("loom.v1.command.gpu-2", "loom.v1.event.>", "_INBOX.>", "loom.v1.telemetry.gpu-2"):
            with pytest.raises(NotAllowed):
                await bus.subscribe(subject, asyncio.sleep)  # type: ignore[arg-type]
        lost = asyncio.ensure_future(bus._link.until_lost())
        await asyncio.to_thread(cluster.homes["c"].loom, "node", "revoke", "gpu-1")
        await asyncio.wait_for(lost, PATIENCE_S)
        await bus.close()
        # By all servers, not only by the one that was asked.
        await refused(own.bus(cluster.nodes[-1].home), cluster.host("a").bus("weaver", "a"))

    asyncio.run(story())
    wait_for(lambda: node(cluster, "gpu-1")["state"] == "unreachable", "its agent is cut off")
    assert "has no credential" in cluster.homes["a"].loom("node", "revoke", "gpu-1", code=3).stderr


@pytest.mark.long
def test_a_revocation_outlives_the_server_that_knew_it(cluster: ControlHosts) -> None:
    cluster.join("gpu-5", cluster.token())
    joined = cluster.nodes[-1].home
    own = JoinedNode.read(joined)
    assert own is not None
    cluster.homes["c"].loom("node", "revoke", "gpu-5")
    home = cluster.homes["b"]
    old = home.kill("nats")
    wait_for(lambda: home.pid("nats") not in (0, old), "the supervisor starts it again")
    server = next(one for one in own.servers if cluster.addresses["b"] in one)

    async def story() -> None:
        only = replace(own.bus(joined), servers=(server,))
        await refused(only, cluster.host("b").bus("weaver", "b"))

    asyncio.run(story())


def test_tokens_expire_name_their_cluster_and_admit_only_who_they_name(cluster: ControlHosts) -> None:
    short, made_s = cluster.token("--for", "1s"), time.monotonic()
    named = cluster.token("--node", "gpu-9")
    assert "for the node gpu-9 only" in cluster.join("gpu-8", named, code=4)
    wait_for(lambda: time.monotonic() > made_s + 1.0, "the token's second is over")
    assert "expired" in cluster.join("gpu-8", short, code=4)
    stem, _, pinned = cluster.token().rpartition(".")
    other = stem + "." + ("0" * 63 + "1" if pinned[0] != "0" else "f" * 64)
    said = cluster.join("gpu-8", other, code=4)
    assert "not of the cluster that the token is for" in said and "nothing was sent" in said
    secret = stem.rpartition(".")[2]
    wrong = f"{stem.rpartition('.')[0]}.{'0' * len(secret)}.{pinned}"
    assert "no join token of this cluster" in cluster.join("gpu-8", wrong, code=4)
    assert not (cluster.directory / "home-gpu-8" / "cluster").exists()


def test_strangers_and_plain_connections_are_refused(cluster: ControlHosts, tmp_path: Path) -> None:
    stranger = trustme.CA()
    stranger.cert_pem.write_to_path(tmp_path / "ca.pem")
    address = f"{cluster.addresses['a']}:{cluster.ports['port']}"
    token = cluster.homes["a"].home.token_file.read_text().strip()
    env = cluster.home("nobody").env | {"LOOM_TOKEN": token}

    def ps(url: str, ca: str) -> tuple[int, str]:
        done = subprocess.run(
            [LOOM, "ps"], env=env | {"LOOM_ADDRESS": url, "LOOM_CA": ca}, capture_output=True, text=True
        )
        return done.returncode, done.stderr

    right = str(cluster.host("a").ca)
    assert ps(f"https://{address}", right) == (0, "")
    code, said = ps(f"https://{address}", str(tmp_path / "ca.pem"))
    assert code == 4 and "cannot prove" in said and "no token was sent" in said
    assert ps(f"http://{address}", right)[0] != 0
    for what in ("port", "nats-port"):
        with pytest.raises(ssl.SSLCertVerificationError):
            cluster.certificate("a", what, tmp_path / "ca.pem")

    async def story() -> None:
        ours = cluster.host("a").bus("weaver", "a")
        with pytest.raises(BusUnavailable):
            await NatsBus.connect(replace(ours, tls=BusTls(str(tmp_path / "ca.pem"))), name="test")

    asyncio.run(story())


def test_certificates_and_authorities_are_replaced_without_a_stop(cluster: ControlHosts) -> None:
    cluster.join("gpu-3", cluster.token(), LOOM_CA_REFRESH_S="0.5")
    joined = cluster.nodes[-1]
    old_ca = ca_file(joined.home).read_text()

    def serials(ca: Path) -> set[int]:
        return {cluster.certificate(name, what, ca) for name in NAMES for what in ("port", "nats-port")}

    async def story() -> None:
        lost = []
        bus = await NatsBus.connect(cluster.host("a").bus("weaver", "a"), name="test", wait_s=PATIENCE_S)

        async def noted() -> None:
            lost.append(1)

        bus.on_reconnect.append(noted)
        before = await asyncio.to_thread(serials, cluster.host("a").ca)
        assert len(before) == 3, "each host has one certificate"
        await asyncio.to_thread(_rotate, cluster, joined, serials, before)
        assert await bus.last_seq() > 0 and not lost, "a connection that exists is not touched"
        await bus.close()

    asyncio.run(story())
    assert ca_file(joined.home).read_text() != old_ca
    view = wait_for(lambda: node(cluster, "gpu-3"), "the node")
    assert view["state"] == "ready"
    assert "connected to NATS again" not in (joined.home.logs_dir / "agent.log").read_text()
    retired = cluster.directory / "old.pem"
    retired.write_text(old_ca)
    with pytest.raises(ssl.SSLCertVerificationError):
        cluster.certificate("a", "port", retired)


def _rotate(cluster: ControlHosts, joined: Any, serials: Any, before: set[int]) -> None:
    def ca(*words: str) -> str:
        return subprocess.run(
            [LOOM, "ca", words[0], str(cluster.made), *words[1:]], check=True, capture_output=True, text=True
        ).stdout

    assert "scp" in ca("rotate")
    for name in NAMES:
        cluster.copy(name, "ca.pem")
    both = (cluster.made / "ca" / "ca.pem").read_text()
    assert both.count("BEGIN CERTIFICATE") == 2
    wait_for(lambda: ca_file(joined.home).read_text() == both, "the node has fetched the new authority")
    ca("renew")
    for name in NAMES:
        cluster.copy(name, "host.key", "host.pem")
    wait_for(lambda: not serials(cluster.host("a").ca) & before, "all servers use their new certificates")
    assert "1 older" in ca("retire")
    for name in NAMES:
        cluster.copy(name, "ca.pem")
    newest = (cluster.made / "ca" / "ca.pem").read_text()
    wait_for(lambda: ca_file(joined.home).read_text() == newest, "the node trusts only the new authority")
    assert len(serials(cluster.made / "ca" / "ca.pem")) == 3
    assert json.loads((joined.home.cluster_dir / "node.json").read_bytes())["node"] == "gpu-3"


@pytest.mark.long
def test_when_the_leading_host_is_lost_another_leads_and_the_job_continues(cluster: ControlHosts) -> None:
    cluster.join("gpu-4", cluster.token("--node", "gpu-4"))
    leader = wait_for(
        lambda: next((name for name in NAMES if health(cluster, name)["active"]), ""), "one weaver leads"
    )
    others = [name for name in NAMES if name != leader]
    home = cluster.homes[others[0]]
    words = ("--name", "sleeper", "--spawn", "cold", "--no-python", "sleep", "100000")
    home.loom("submit", *words)
    wait_for(lambda: _status(cluster, others[0])["running_workers"] == 1, "the job runs")
    before = _status(cluster, others[0])
    for part in ("supervisor", "weaver", "nats"):
        cluster.homes[leader].kill(part)
    leads = lambda: [name for name in others if health(cluster, name)["active"]]  # noqa: E731
    assert len(wait_for(leads, "another weaver leads")) == 1
    # The next decision is carried out, by the new leader, on a node that nothing happened to.
    # A weaver that was connected to the lost server refuses requests until it has another connection.
    wait_for(lambda: home.start("stop", "sleeper").wait(240) == 0, "a request is taken")
    after = wait_for(lambda: _ended(cluster, others[0]), "the job was stopped")
    for same in ("generation", "restarts"):
        assert after[same] == before[same], same
    assert after["state"] == "stopped"


def _status(cluster: ControlHosts, at: str) -> dict[str, Any]:
    from torchloom.client import Client, Endpoint

    api = Client(Endpoint.of_home(cluster.homes[at].home), timeout_s=60)
    try:
        return dict(api.job("sleeper"))
    finally:
        api.close()


def _ended(cluster: ControlHosts, at: str) -> dict[str, Any]:
    found = _status(cluster, at)
    return found if found["ended_at_ns"] else {}
