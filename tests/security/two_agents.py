"""A real nats-server with the accounts of a weaver and of two agents, n1 and n2, each with its own key."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats.aio.client
from loom_home import wait_for

from torchloom.bus import nats_config
from torchloom.bus.address import BusAddress
from torchloom.bus.keys import new_seed, public_key
from torchloom.bus.nats_binary import find_server


@dataclass(frozen=True)
class TwoAgents:
    url: str
    weaver_seed: str
    agent_seeds: dict[str, str]

    def weaver(self) -> BusAddress:
        return BusAddress((self.url,), seed=self.weaver_seed, inbox_prefix=nats_config.WEAVER_INBOX)

    def agent(self, node: str) -> BusAddress:
        return BusAddress(
            (self.url,),
            seed=self.agent_seeds[node],
            inbox_prefix=nats_config.agent_inbox(node),
            leader=nats_config.LEADER,
        )

    @contextlib.asynccontextmanager
    async def thief(self, node: str) -> AsyncIterator[Any]:
        """A client with the stolen key of a node's agent, which waits for no answer."""
        client = nats.aio.client.Client()

        async def ignore(error: Exception) -> None:
            pass

        await client.connect(
            self.url,
            nkeys_seed_str=self.agent_seeds[node],
            inbox_prefix=nats_config.agent_inbox(node),
            error_cb=ignore,
            flush_timeout=120,
        )
        try:
            yield client
        finally:
            await client.close()


@contextlib.contextmanager
def two_agents(directory: Path) -> Iterator[TwoAgents]:
    directory.mkdir(parents=True, exist_ok=True)
    seeds = {name: new_seed() for name in ("weaver", "n1", "n2")}
    text = nats_config.render(
        server_name="loom-two",
        port=-1,
        store_dir=str(directory / "jetstream"),
        log_file=str(directory / "nats.log"),
        weaver=public_key(seeds["weaver"]),
        agents={node: public_key(seeds[node]) for node in ("n1", "n2")},
    )
    (directory / "nats.conf").write_text(text)
    command = [str(find_server()), "-c", str(directory / "nats.conf"), "--ports_file_dir", str(directory)]
    with (directory / "output.log").open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    told = directory / f"nats-server_{server.pid}.ports"

    def url() -> str:
        assert server.poll() is None, (directory / "output.log").read_text()
        try:
            (found,) = json.loads(told.read_text())["nats"]
        except (OSError, ValueError):  # not there yet, or half of it
            return ""
        return str(found)

    try:
        yield TwoAgents(
            wait_for(url, "a NATS server that listens"),
            seeds["weaver"],
            {node: seeds[node] for node in ("n1", "n2")},
        )
    finally:
        server.kill()
        server.wait()
