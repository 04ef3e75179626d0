"""A stolen agent key floods the event stream of a real server; other nodes are controlled as before."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from two_agents import TwoAgents, two_agents
from weaver_story import SPEC, ObedientAgent, until

from torchloom.bus.nats import NatsBus
from torchloom.core.nodes import event_shares, floods
from torchloom.errors import BusUnavailable
from torchloom.model.events import Envelope, Event
from torchloom.model.fleet import JobState
from torchloom.model.messages import Telemetry
from torchloom.weaver.service import Weaver
from torchloom.wire import codec, subjects

FLOOD = """
import asyncio, sys
sys.path[:0] = sys.argv[4:]
from two_agents import TwoAgents

async def flood():
    sent = 0
    async with TwoAgents(sys.argv[1], "", {"n1": sys.argv[2]}).thief("n1") as client:
        print("begins", flush=True)
        while True:
            await client.publish("loom.v1.event.node.n1.report", b"z" * int(sys.argv[3]))
            sent += 1
            if sent % 100 == 0:
                await asyncio.sleep(0)
                print(sent, flush=True)

asyncio.run(flood())
"""


@contextmanager
def flooding(server: TwoAgents, size: int, output: Path) -> Iterator[None]:
    """A process with n1's key that publishes as fast as it can and waits for nothing."""
    command = [sys.executable, "-c", FLOOD, server.url, server.agent_seeds["n1"], str(size)]
    with output.open("wb") as file:
        thief = subprocess.Popen([*command, *(p for p in sys.path if "tests" in p)], stdout=file)
    try:
        yield
    finally:
        thief.kill()
        thief.wait()


class PersistentAgent(ObedientAgent):
    """Reports as a real agent does: again and again under the same id, until it is acknowledged."""

    async def beat(self) -> None:
        while True:
            beat = Telemetry(node=self.node, session="s", at_ns=time.time_ns(), epoch=0)
            await self.bus.publish(subjects.telemetry(self.node), codec.encode(beat))
            await asyncio.sleep(0.25)

    async def say(self, body: Event) -> None:
        envelope = Envelope(uuid.uuid4().hex, self.node, body)
        async with asyncio.timeout(240):
            while True:
                try:
                    data = codec.encode(envelope)
                    await self.bus.append(subjects.node_event(self.node), data, id=envelope.id)
                    return
                except BusUnavailable:
                    await asyncio.sleep(0.05)


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[tuple[TwoAgents, Weaver, PersistentAgent, PersistentAgent]]:
    """A weaver that leads, the agents of n1 and n2, and a job that runs on n2."""
    with two_agents(tmp_path / "nats") as server:
        bus = await NatsBus.connect(server.weaver(), name="weaver", wait_s=120)
        weaver, stop = Weaver(bus, "w1"), asyncio.Event()
        task = asyncio.create_task(weaver.run(stop))
        buses = [await NatsBus.connect(server.agent(n), name=n, wait_s=120) for n in ("n1", "n2")]
        first, second = (PersistentAgent(one, n) for one, n in zip(buses, ("n1", "n2"), strict=True))
        beating = [asyncio.create_task(agent.beat()) for agent in (first, second)]
        try:
            await until(weaver, lambda: weaver.active, "leads")
            await second.join()  # and not n1: the job must have its workers on n2
            await weaver.submit("before", SPEC, {}, "me")
            await until(weaver, lambda: weaver.fleet.jobs["before"].state is JobState.RUNNING, "runs")
            yield server, weaver, first, second
        finally:
            for beat in beating:
                beat.cancel()
            for one in buses:
                await one.close()
            stop.set()
            await task
            await bus.close()


def test_a_flood_of_one_agents_events_leaves_the_others_controlled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_shares, "CLOSED_S", 6.0)
    monkeypatch.setattr(event_shares, "LONGEST_CLOSED_S", 12.0)

    async def play() -> None:
        async with scene(tmp_path) as (server, weaver, first, second):
            output = tmp_path / "sent"
            with flooding(server, 100, output):

                def incident() -> bool:
                    found = weaver.fleet.incidents.get(weaver.fleet.floods.get("n1", ""))
                    return found is not None and found.kind == floods.KIND and found.node == "n1"

                await until(weaver, incident, "the flood is an incident that names n1")
                ref = weaver.fleet.jobs["before"].workers[0].ref
                await second.die(ref, 1)
                job = weaver.fleet.jobs["before"]

                def recovered() -> bool:
                    return job.generation == 2 and job.state is JobState.RUNNING

                await until(weaver, recovered, "the job on n2 is restarted")
                assert "n2" not in weaver.fleet.floods and weaver.active
                sent = int(output.read_text().split()[-1])
            assert weaver.fleet.flood_counts["n1"] >= 1
            taken = (await weaver._bus.stored(subjects.NODE_EVENTS)).by_subject[subjects.node_event("n1")]
            assert taken < sent / 2, f"{taken} of {sent} were stored"
            await until(weaver, lambda: "n1" not in weaver.fleet.floods, "the flood is over")
            await first.join()
            await until(weaver, lambda: "n1" in weaver.fleet.nodes, "n1 is taken again")

    asyncio.run(play())
