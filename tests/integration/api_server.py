"""The whole API over real HTTP on a weaver of its own, with the memory bus and an agent that obeys.

For tests of the API that need no worker process: it starts in milliseconds and can be restarted at will.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from steered_ranks import Ranks

from torchloom.api.defaults import Defaults
from torchloom.api.tokens import Tokens
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.bus.protocol import Message
from torchloom.cli.service.serving import serve_api
from torchloom.errors import BusUnavailable
from torchloom.model.effects import PostMail, StartRendezvous, StartWorkers, StopWorkers
from torchloom.model.events import (
    EffectDone,
    Envelope,
    Event,
    FirstStep,
    NodeJoined,
    RanksAnswered,
    RendezvousStarted,
    StartedWorker,
    WorkerExited,
    WorkersStarted,
)
from torchloom.model.messages import BoxReading, LogPiece, ReadLog, Receipt, Telemetry
from torchloom.model.node import Inventory, RendezvousAddress
from torchloom.model.worker import Exit, WorkerRef
from torchloom.weaver.service import Weaver
from torchloom.wire import codec, subjects

TOKEN = "the-first-token"


class FakeAgent:
    """Does at once what it is told; its logs are byte strings."""

    def __init__(self, bus: MemoryBus, node: str, slots: int) -> None:
        self.bus, self.node, self.slots = bus, node, slots
        self.logs: dict[tuple[str, int], bytes] = {}
        self.printed: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """Pairs (offset, time) of a log."""
        self.unfinished: dict[tuple[str, int], bytes] = {}
        self.done: set[str] = set()
        self.removed: list[str] = []
        self.live: set[WorkerRef] = set()
        self.env: dict[str, dict[str, str]] = {}
        self.steered: dict[str, Ranks] = {}
        """Jobs whose ranks answer mail and tell settings."""
        self.beating: asyncio.Task[None] | None = None
        self.clock: Callable[[], int] = lambda: 1
        """When workers end."""

    async def join(self) -> None:
        await self.bus.subscribe(subjects.command(self.node), self._obey)
        await self.bus.subscribe(subjects.query(self.node), self._answer)
        inventory = Inventory(hostname="h", address="127.0.0.1", boot_id="b", max_workers=self.slots)
        await self.say(NodeJoined(node=self.node, session="s", inventory=inventory))
        self.beating = asyncio.create_task(self.beat_on())

    async def say(self, body: Event) -> None:
        envelope = Envelope(uuid.uuid4().hex, self.node, body)
        await self.bus.append(subjects.node_event(self.node), codec.encode(envelope), id=envelope.id)

    async def exit(self, ref: WorkerRef, code: int | None, signal: int | None = None) -> None:
        if ref in self.live:
            self.live.discard(ref)
            exit_ = Exit(code, signal, "spawner")
            await self.say(WorkerExited(node=self.node, ref=ref, exit=exit_, at_ns=self.clock(), steps=50))

    async def _obey(self, message: Message) -> None:
        command = codec.decode_command(message.data)
        effect = command.effect
        await self.bus.respond(message, codec.encode(Receipt(True, command.epoch)))
        if isinstance(effect, PostMail):
            await self._deliver(effect)
            return
        if effect.id in self.done:
            return
        self.done.add(effect.id)
        match effect:
            case StartRendezvous():
                address = RendezvousAddress("127.0.0.1", 29500)
                await self.say(
                    RendezvousStarted(node=self.node, effect=effect.id, store=effect.store, address=address)
                )
            case StartWorkers():
                self.env[effect.job] = command.env
                started = tuple(StartedWorker(x.ref, 100 + x.ref.rank) for x in effect.launches)
                self.live.update(s.ref for s in started)
                for s in started:
                    self.logs.setdefault((s.ref.job, s.ref.rank), b"")
                await self.say(WorkersStarted(node=self.node, effect=effect.id, workers=started))
            case _:
                await self.say(EffectDone(node=self.node, effect=effect.id))
                if isinstance(effect, StopWorkers):
                    for ref in effect.workers:
                        await self.exit(ref, None, 9)
                elif effect.__struct_config__.tag == "remove-job-files":
                    self.removed.append(effect.job)  # type: ignore[union-attr]

    async def _deliver(self, effect: PostMail) -> None:
        ranks = self.steered.get(effect.job)
        answers = ranks.read(effect.mail, effect.workers) if ranks is not None else ""
        if answers:
            said = RanksAnswered(
                node=self.node, job=effect.job, generation=effect.generation, answers=answers
            )
            await self.say(said)
            await self.beat()

    async def beat(self) -> None:
        """One heartbeat with the pulses of steered jobs."""
        pulses = tuple(
            ranks.pulse(ref, 100 + ref.rank)
            for job, ranks in self.steered.items()
            for ref in sorted(self.live, key=lambda ref: ref.rank)
            if ref.job == job
        )
        told = Telemetry(node=self.node, session="s", at_ns=time.time_ns(), epoch=1, workers=pulses)
        await self.bus.publish(subjects.telemetry(self.node), codec.encode(told))

    async def beat_on(self) -> None:
        """A node that was heard of once and is silent then gets no workers any more."""
        while True:
            with contextlib.suppress(BusUnavailable):
                await self.beat()
            await asyncio.sleep(0.5)

    async def step(self, job: str) -> None:
        """All ranks of a job made their first step."""
        for ref in sorted((r for r in self.live if r.job == job), key=lambda ref: ref.rank):
            await self.say(FirstStep(node=self.node, ref=ref, at_ns=time.time_ns(), training_step=1))
        await self.beat()

    async def _answer(self, message: Message) -> None:
        query = codec.decode_query(message.data)
        answer: LogPiece | BoxReading = BoxReading(found=False)
        if isinstance(query, ReadLog):
            data = self.logs.get((query.job, query.rank), b"")
            if query.offset < 0:
                start = len(data) - len(b"".join(data.splitlines(keepends=True)[query.offset :]))
            else:
                start = min(query.offset, len(data))
            piece = data[start : start + query.max_bytes]
            if start + len(piece) < len(data):
                piece = piece[: piece.rfind(b"\n") + 1]
            end, place = start + len(piece), (query.job, query.rank)
            marks = [(at, ns) for at, ns in self.printed.get(place, []) if start < at <= end]
            answer = LogPiece(
                piece,
                start,
                end,
                marks=tuple(marks),
                now_ns=time.time_ns(),
                unfinished=self.unfinished.get(place, b"") if query.unfinished else b"",
            )
        await self.bus.respond(message, codec.encode(answer))


class ApiServer:
    """A thread with an event loop: hub, agents, weaver, HTTP. `restart` replaces weaver and HTTP only."""

    def __init__(
        self,
        *,
        nodes: int = 1,
        slots: int = 8192,
        tokens_file: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.hub = MemoryHub()
        self._defaults = Defaults.read(env or {})
        self._tokens_file = tokens_file
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.agents = [FakeAgent(MemoryBus(self.hub), f"n{i + 1}", slots) for i in range(nodes)]
        self.weaver: Weaver
        self.call(self._start)
        for agent in self.agents:
            self.call(agent.join)
        self.wait(lambda: self.weaver.active and len(self.weaver.fleet.nodes) == nodes)

    def call(self, make: Callable[[], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            return await make()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(240)

    def wait(self, condition: Callable[[], object], timeout_s: float = 120.0) -> None:
        async def run() -> None:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await asyncio.sleep(0.01)

        self.call(run)

    async def _start(self) -> None:
        self._stop = asyncio.Event()
        self._bus = MemoryBus(self.hub)
        self.weaver = Weaver(self._bus)
        tokens = Tokens(TOKEN, self._tokens_file)
        self._tasks = [
            asyncio.create_task(self.weaver.run(self._stop)),
            asyncio.create_task(
                serve_api(
                    self.weaver,
                    tokens,
                    self._listener.dup(),
                    frozenset(),
                    self._stop,
                    defaults=self._defaults,
                )
            ),
        ]

    async def _end(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await self._bus.close()

    def steer(self, job: str, ranks: Ranks) -> None:
        """Let the ranks of a job on the first node step, tell their settings and answer mail."""
        agent = self.agents[0]
        world = self.weaver.fleet.jobs[job].spec.world_size
        self.wait(lambda: sum(ref.job == job for ref in agent.live) == world)
        agent.steered[job] = ranks
        self.call(lambda: agent.step(job))
        self.wait(lambda: len(self.weaver.pulse(job)) == world)

    async def _still(self) -> None:
        for agent in self.agents:
            if agent.beating is not None:
                agent.beating.cancel()
                await asyncio.wait([agent.beating])

    def cut_bus(self, cut: bool) -> None:
        """Take the weaver's connection to its bus away, or give it back."""

        async def do() -> None:
            self._bus.partition() if cut else self._bus.heal()

        self.call(do)

    def restart(self) -> None:
        self.call(self._end)
        self.call(self._start)
        self.wait(lambda: self.weaver.active)

    def close(self) -> None:
        self.call(self._end)
        self.call(self._still)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(240)
        self._loop.close()
        self._listener.close()

    # -- a client ---------------------------------------------------------------------------------
    def request(
        self, method: str, path: str, body: object = None, token: str | None = TOKEN, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """One bare request; a body that is not bytes is sent as JSON."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=240)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            if found.get("content-type", "").startswith("text/event-stream"):
                return answer.status, found, None  # it does not end by itself
            data = answer.read()
        finally:
            connection.close()
        if data and found.get("content-type", "").endswith("json"):
            return answer.status, found, json.loads(data)
        return answer.status, found, data.decode()

    def submit(self, **body: object) -> str:
        status, _, made = self.request("POST", "/jobs", {"command": ["true"]} | body)
        assert status == 201, made
        return str(made["job"])


@contextlib.contextmanager
def api_server(**how: Any) -> Iterator[ApiServer]:
    server = ApiServer(**how)
    try:
        yield server
    finally:
        server.close()
