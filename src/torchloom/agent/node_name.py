"""The agent's claim to its node's name: acquired before it serves anything, and checked from then on.

Two hosts with the same name would both execute each command. So an agent first joins and asks a weaver
whether it owns the name. Until then it answers no query and sends no telemetry; and every command names the
agent it is for. Without a weaver the agent serves at once, because nobody sends commands either, and keeps
asking. core/nodes/name_owner.py decides who owns a name. Nothing here ends a worker.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time

from torchloom.agent.host import Host
from torchloom.bus.protocol import Bus
from torchloom.errors import Conflict, LoomError, NoResponder, UsageError
from torchloom.model.events import Envelope, NodeJoined
from torchloom.model.messages import AskLease, Standing
from torchloom.model.node import HostId
from torchloom.wire import codec, subjects

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""A rebooted host may be back before its previous agent counts as unreachable."""
NOBODY_AFTER_S = 2.5
ASK_EVERY_S = 5.0
_FIRST_ANSWER_S = 0.25
_LAST_ANSWER_S = 2.0
_AGAIN_S = 0.02
_RETRY_S = 0.25
_JOIN_AGAIN = 50
"""Answers in a row that call the name free before the join counts as lost: it may still be in transit."""


class Name:
    def __init__(self, host: Host, bus: Bus) -> None:
        self._host = host
        self._bus = bus
        self._numbers = itertools.count(1)
        self._ask_now = asyncio.Event()
        self.lost = asyncio.Event()
        """Set when another agent has taken over the name; `why` gives the reason."""
        self.why: Conflict | None = None

    async def greet(self) -> None:
        """Report the inventory, after all earlier reports; called whenever the bus is back."""
        self._host.reporter.say(self._joined(), self._event_id())
        self._ask_now.set()

    async def take(self, stop: asyncio.Event) -> None:
        """Join, and return when the name is ours or no weaver answers; at once when `stop` is set.

        Raises Conflict if another agent owns the name and keeps it.
        """
        await self._join(stop)
        if not await self._settle(stop, time.monotonic() + NOBODY_AFTER_S):
            self._ask_now.set()

    async def keep(self) -> None:
        """Ask again from time to time, until another agent owns the name."""
        while not self.lost.is_set():
            try:
                async with asyncio.timeout(ASK_EVERY_S):
                    await self._ask_now.wait()
            except TimeoutError:
                pass
            self._ask_now.clear()
            try:
                known = await self._settle(self.lost, time.monotonic() + NOBODY_AFTER_S)
            except Conflict as error:
                self.why = error
                self.lost.set()
            else:
                if not known:
                    await asyncio.sleep(1.0)
                    self._ask_now.set()

    async def _settle(self, stop: asyncio.Event, until_s: float) -> bool:
        """Ask until the name is ours; False if there was no answer, `until_s` at least."""
        wait_s, free, give_up = _FIRST_ANSWER_S, 0, 0.0
        while not stop.is_set():
            try:
                found = await self._ask(wait_s)
            except NoResponder:
                return False
            except LoomError:
                if time.monotonic() > until_s:
                    return False
                wait_s = min(_LAST_ANSWER_S, wait_s * 2)
                await asyncio.sleep(_AGAIN_S)
                continue
            if found.name == "yours":
                return True
            if found.name == "free":
                free += 1
                if give_up or free > _JOIN_AGAIN:  # another agent had the name, or our join was lost
                    free, give_up = 0, 0.0
                    await self._join(stop)
                await asyncio.sleep(_AGAIN_S)
                continue
            if not give_up:
                give_up = time.monotonic() + PATIENCE_S
                log.warning("%s; waiting for a moment", found.why)
            elif time.monotonic() > give_up:
                raise Conflict(found.why, hint=found.hint)
            await asyncio.sleep(_RETRY_S)
        return False

    async def _ask(self, within_s: float) -> Standing:
        inventory = self._host.inventory()
        who = HostId(inventory.hostname, inventory.boot_id, inventory.home)
        ask = AskLease(session=self._host.session, what_for="name", host=who)
        answer = await self._bus.request(
            subjects.lease(self._host.node), codec.encode(ask), timeout_s=within_s
        )  # fmt: skip
        try:
            return codec.decode_standing(answer)
        except codec.DecodeError:
            raise NoResponder("an answer that cannot be read is nobody's") from None

    async def _join(self, stop: asyncio.Event) -> None:
        """Append directly to the stream, before all queued reports."""
        event_id = self._event_id()
        while not stop.is_set():
            envelope = Envelope(
                event_id,
                f"agent/{self._host.node}",
                self._joined(),
                sent_ns=time.time_ns(),
                session=self._host.session,
            )
            try:
                await self._bus.append(
                    subjects.node_event(self._host.node), codec.encode_envelope(envelope), id=event_id
                )
                return
            except (UsageError, ValueError, OverflowError) as error:
                log.error("%s cannot join: %s", self._host.node, error)
                return  # every retry would be refused
            except LoomError as error:
                log.info("the joining of %s waits: %s", self._host.node, error)
                await asyncio.sleep(_RETRY_S)

    def _joined(self) -> NodeJoined:
        host = self._host
        return NodeJoined(node=host.node, session=host.session, inventory=host.inventory())

    def _event_id(self) -> str:
        return f"{self._host.session}.joined.{next(self._numbers)}"
