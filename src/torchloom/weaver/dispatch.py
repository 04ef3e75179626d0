"""Sends effects to agents: recorded first, then sent, then resent under the same id until they are closed.

Mail is not recorded: its content follows from the stream alone, for every weaver, and of two mails about one
attempt the later phase counts, whichever arrives first. So even mail from a deposed weaver is true.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from functools import partial

from torchloom.bus.protocol import MAX_MESSAGE_BYTES, Bus
from torchloom.errors import BusUnavailable, Conflict, NoResponder, TimedOut
from torchloom.model.effects import (
    Effect,
    MoveLighthouse,
    PostMail,
    StartRendezvous,
    StartWorkers,
    StopWorkers,
    WarmSpawner,
)
from torchloom.model.events import Decided, Envelope
from torchloom.model.fleet import Fleet, Job
from torchloom.model.messages import LIGHTHOUSE_SECRET, MEMORY_SECRET, STORE_SECRET, Command
from torchloom.weaver.environments import Environments
from torchloom.wire import codec, subjects
from torchloom.wire.store_values import secret_of_generation, secret_of_lighthouse, secret_of_memory

log = logging.getLogger(__name__)

RESEND_S = 1.0
RESEND_MOST_S = 8.0
"""An agent that has taken a command is sent it again less and less often: thousands of nodes that are at work
would otherwise be asked again and again instead of being heard. One that was started anew joins, and gets all
at once."""


class Deposed(Exception):
    """Another weaver acts now."""


class Dispatcher:
    """Performs the outbox of the fleet. Chooses nothing: what is open is sent, in order per node."""

    def __init__(self, bus: Bus, name: str, environments: Environments, wake: asyncio.Event) -> None:
        self._bus = bus
        self._name = name
        self._environments = environments
        self._wake = wake
        self._due_s: dict[str, float] = {}
        """When an effect that was sent is sent again."""
        self._taken: dict[str, int] = {}
        """How often its agent has said that it has it."""
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._recorded: set[str] = set()
        self._delivered: set[str] = set()
        """Mail that an agent has: it stays in the mailbox, and only a new agent is sent it again."""
        self.refusals: dict[str, str] = {}
        """Why the agent of a node cannot read what it is sent: it is too old."""
        self.last_decision = 0
        """Sequence of the newest decision in the stream, kept up to date by the reader of the stream."""

    async def perform(self, fleet: Fleet, epoch: int, now: frozenset[str] = frozenset()) -> None:
        """Record and send whatever is open and not lately sent; to the nodes `now` at once.

        Returns when everything is recorded and on its way: a node that answers slowly holds up only itself.
        Raises Deposed when we are not in charge.
        """
        clock = asyncio.get_running_loop().time()
        self._forget_closed(fleet)
        due: dict[str, list[Effect]] = {}
        for effect in fleet.outbox.values():
            if effect.id in self._delivered and effect.node not in now:
                continue
            if effect.node not in self._sending and (
                clock >= self._due_s.get(effect.id, clock) or effect.node in now
            ):
                due.setdefault(effect.node, []).append(effect)
        await self._record([e for es in due.values() for e in es if self._is_new(e)], epoch)
        for node, effects in due.items():
            self._due_s.update((e.id, clock + RESEND_S) for e in effects)
            task = asyncio.create_task(self._send_all(fleet, node, effects, epoch))
            self._sending[node] = task
            task.add_done_callback(partial(self._sent, node))

    def _is_new(self, effect: Effect) -> bool:
        return effect.id not in self._recorded and not isinstance(effect, PostMail)

    def _sent(self, node: str, _: asyncio.Task[None]) -> None:
        del self._sending[node]
        self._wake.set()

    async def _record(self, effects: Sequence[Effect], epoch: int) -> None:
        for some in _in_pieces(effects):
            await self._record_some(some, epoch)

    async def _record_some(self, effects: Sequence[Effect], epoch: int) -> None:
        body = Decided(epoch=epoch, effects=tuple(effects))
        envelope = Envelope(f"d-{epoch}-{effects[0].id}-{uuid.uuid4().hex[:8]}", self._name, body)
        try:
            await self._append(envelope)
        except Conflict as error:
            stored = await self._bus.last_seq(subjects.DECISIONS)
            if stored >= self.last_decision:
                raise Deposed("another weaver has decided meanwhile") from error
            self.last_decision = stored  # the one before was dropped with the history that nobody needs
            try:
                await self._append(envelope)
            except Conflict as again:
                raise Deposed("another weaver has decided meanwhile") from again
        self._recorded.update(e.id for e in effects)

    async def _append(self, envelope: Envelope) -> None:
        self.last_decision = await self._bus.append(
            subjects.DECISIONS,
            codec.encode_envelope(envelope),
            id=envelope.id,
            expect_last=self.last_decision,
        )

    async def _send_all(self, fleet: Fleet, node: str, effects: Sequence[Effect], epoch: int) -> None:
        for effect in effects:
            if effect.id not in fleet.outbox:
                continue
            try:
                await self._send(fleet, effect, epoch)
            except (NoResponder, TimedOut, BusUnavailable) as error:
                log.info("%s does not take %s now (%s); it is sent again", node, effect.id, error)
                return

    async def _send(self, fleet: Fleet, effect: Effect, epoch: int) -> None:
        env: dict[str, str] = {}
        if isinstance(effect, StartWorkers):
            env = await self._environments.get(fleet.jobs.get(effect.job))
            if effect.job in fleet.jobs:
                # Distinguishes this submission from others of the same name, also in a shared store.
                env = {**env, "LOOM_RUN": f"{fleet.jobs[effect.job].submitted_at_ns:x}"}
                env |= await self._secrets(fleet.jobs[effect.job], effect)
        elif isinstance(effect, StartRendezvous):
            env = await self._environments.get(fleet.jobs.get(effect.env_of))
            job = fleet.jobs.get(effect.env_of)
            if effect.replica is not None and job is not None:
                secret = await self._environments.secret(job)
                env = {**env, LIGHTHOUSE_SECRET: secret_of_lighthouse(secret, effect.replica.set)}
        elif isinstance(effect, WarmSpawner):
            env = await self._environments.get(fleet.jobs.get(effect.job))
        known = fleet.nodes.get(effect.node)
        session = known.session if known is not None else ""
        data = codec.encode_command(Command(epoch, effect, env, session, nodes=len(fleet.nodes)))
        receipt = codec.decode_receipt(
            await self._bus.request(subjects.command(effect.node), data, timeout_s=2.0)
        )
        if receipt.too_old:
            self.refusals[effect.node] = receipt.why
        else:
            self.refusals.pop(effect.node, None)
        if not receipt.accepted:
            # Whatever epoch it claims to obey: the lease says who leads, and no agent deposes a weaver.
            log.warning("%s refused %s: %s", effect.node, effect.id, receipt.why)
        elif isinstance(effect, PostMail):
            self._delivered.add(effect.id)
        elif effect.id in self._due_s and not _is_retried(effect):
            times = self._taken[effect.id] = self._taken.get(effect.id, 0) + 1
            wait_s = min(RESEND_MOST_S, RESEND_S * 2.0 ** (times - 1))
            self._due_s[effect.id] = asyncio.get_running_loop().time() + wait_s

    async def _secrets(self, job: Job, effect: StartWorkers) -> dict[str, str]:
        """What proves the values of this generation's ranks in their store, and what the agents of the job
        encrypt its states with."""
        secret = await self._environments.secret(job)
        if not secret:
            return {}
        made = {STORE_SECRET: secret_of_generation(secret, job.id, effect.generation)}
        if effect.memory is not None:
            made[MEMORY_SECRET] = secret_of_memory(secret, job.id)
        return made

    def _forget_closed(self, fleet: Fleet) -> None:
        for effect_id in [e for e in self._due_s if e not in fleet.outbox]:
            del self._due_s[effect_id]
            self._taken.pop(effect_id, None)
            self._recorded.discard(effect_id)
            self._delivered.discard(effect_id)


def _is_retried(effect: Effect) -> bool:
    """Whether it stays open when its agent has failed, which then tries again each time it is sent."""
    return isinstance(effect, MoveLighthouse) or (isinstance(effect, StopWorkers) and effect.strays)


def _in_pieces(effects: Sequence[Effect]) -> list[list[Effect]]:
    """Groups of effects, in order, that each fit into one event."""
    pieces: list[list[Effect]] = []
    room = 0
    for effect in effects:
        size = len(codec.encode(effect))
        if size > room or not pieces:
            pieces.append([])
            room = MAX_MESSAGE_BYTES // 2
        pieces[-1].append(effect)
        room -= size
    return pieces
