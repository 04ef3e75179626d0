"""What people say about nodes, and which nodes are reachable: published as events. Decides nothing."""

from __future__ import annotations

import asyncio
import logging

from msgspec.structs import replace

from torchloom.bus.protocol import Bus, Lease, Message
from torchloom.core.detect.silence import fenced_nodes, heard_again, silent_nodes
from torchloom.core.nodes.name_owner import standing
from torchloom.errors import Conflict, NotFound
from torchloom.model.events import NodeDrained, NodeGone
from torchloom.model.fleet import NodeState
from torchloom.weaver.hearing import Hearing
from torchloom.weaver.live_view import LiveView
from torchloom.weaver.publisher import Publisher
from torchloom.wire import codec, subjects

log = logging.getLogger(__name__)

SILENT_LIMIT_S = 3.0
"""A node without a heartbeat for longer is unreachable."""


class Nodes:
    """Answers hosts, reports silent ones, and records what people say about them."""

    def __init__(self, bus: Bus, stream: Publisher, live: LiveView, lease: Lease) -> None:
        self._bus = bus
        self._stream = stream
        self._live = live
        self._lease = lease
        self.hearing = Hearing(bus, stream.name, lambda: len(stream.fleet.nodes))

    def seen(self, node: str) -> float | None:
        """Seconds since its last heartbeat; None if there was none."""
        heard = self._live.last_heard_s.get(node)
        return None if heard is None else max(0.0, asyncio.get_running_loop().time() - heard)

    async def lease_asked(self, message: Message) -> None:
        """A host asks whether it owns its name, which every weaver knows from the stream, or whether it is
        reachable: only the leading weaver may answer that, because it would replace the host's workers. The
        answer to a host that counts as silent names what has to end there before it may start anything."""
        node = subjects.node_of(message.subject)
        if node is None:
            return
        try:
            ask = codec.decode_lease_ask(message.data)
        except codec.DecodeError as error:
            log.warning("a question on %s cannot be read: %s", message.subject, error)
            return
        known = self._stream.fleet.nodes.get(node)
        if ask.what_for == "name":
            if ask.host is not None and self._stream.ready:
                found = standing(known, ask.session, ask.host, self.seen(node))
                await self._bus.respond(message, codec.encode(found))
        elif self._stream.active and not self._lease.expired and self.is_its_agent(node, ask.session):
            self._live.note(node, asyncio.get_running_loop().time())
            if ask.what_for == "keep" or (known is not None and known.state is NodeState.READY):
                await self._bus.respond(message, b"heard")

    def is_its_agent(self, node: str, session: str) -> bool:
        """Whether this agent owns the node's name, as far as that is known: others are ignored."""
        known = self._stream.fleet.nodes.get(node)
        return known is None or known.session == session

    async def say_silence(self, now_s: float) -> None:
        """Nodes that fell silent or are reachable again, and workers that their own hosts have killed. Of
        silence nothing is said by a weaver that did not hear well itself."""
        heard_s = self._live.last_heard_s
        for again in heard_again(self._stream.fleet, heard_s, now_s, SILENT_LIMIT_S):
            await self._stream.say("finding", again)
        if self.hearing.well_for_s() < SILENT_LIMIT_S:
            return
        for silent in silent_nodes(self._stream.fleet, heard_s, now_s, SILENT_LIMIT_S):
            spoke_s = self._live.spoke_s.get(silent.node)
            unheard_s = None if spoke_s is None else now_s - spoke_s
            await self._stream.say("finding", replace(silent, unheard_s=unheard_s))
        since_s = self._live.expected_s  # another weaver may have given leases until then
        heard = {node: max(at_s, since_s) for node, at_s in self._live.last_heard_s.items()}
        for gone in fenced_nodes(self._stream.fleet, heard, now_s):
            await self._stream.say("node", replace(gone, steps=self._steps_on(gone.node)))

    async def gone(self, node: str, by: str) -> None:
        """Record that the host of a silent node is gone; refused while the node is reachable."""
        self._stream.check_ready()
        known = self._stream.fleet.nodes.get(node)
        if known is None:
            raise NotFound(f"There is no node {node[:64]!r}; `loom nodes` lists them.")
        if known.state is NodeState.GONE:
            return
        seen_s = self.seen(node)
        if seen_s is not None and seen_s <= SILENT_LIMIT_S:
            raise Conflict(
                f"{node}'s last heartbeat was {seen_s:.1f} s ago: a host that is reachable is not gone."
            )
        if known.state is NodeState.READY:
            raise Conflict(f"{node} counts as ready; wait until it is reported as unreachable.")
        await self._stream.say("node", NodeGone(node=node, by=by, steps=self._steps_on(node)))
        if self._stream.fleet.nodes[node].state is not NodeState.GONE:
            raise Conflict(f"{node} was seen this very moment, so it is not gone.")

    async def drain(self, node: str, by: str, why: str, *, keep: bool, force: bool) -> None:
        """Place no new workers on a node; its jobs move elsewhere unless `keep` is set."""
        self._check_node(node)
        event = NodeDrained(
            node=node, by=by, why=why, move=not keep, force=force, step_s=self._step_s_on(node)
        )  # fmt: skip
        await self._stream.say("node", event)

    async def open(self, node: str, by: str) -> None:
        self._check_node(node)
        await self._stream.say("node", NodeDrained(node=node, by=by, open=True))

    def _check_node(self, node: str) -> None:
        self._stream.check_ready()
        if node not in self._stream.fleet.nodes:
            raise NotFound(f"There is no node {node[:64]!r}; `loom nodes` lists them.")

    def _step_s_on(self, node: str) -> dict[str, float]:
        found = {}
        for job in sorted(self._stream.fleet.nodes[node].jobs):
            progress = self._live.progress(self._stream.fleet, job)
            if progress:
                found[job] = max(one.step_s for one in progress)
        return found

    def _steps_on(self, node: str) -> dict[str, int]:
        found = {}
        for job in sorted(self._stream.fleet.nodes[node].jobs):
            steps = [p.steps for p in self._live.pulses(self._stream.fleet, job).values()]
            if steps:
                found[job] = max(steps)
        return found
