"""Reads the event stream in order and without end, across lost connections and restarted servers.

Owns the position: the server's consumer is a throw-away that is made anew, from the position, whenever
anything looks odd (a gap, silence, a lost connection). That is what makes "no loss, no duplicate" simple.
nats-py's ordered consumer does the same inside callbacks, where a failed re-creation goes unnoticed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from torchloom.bus.nats_config import EVENT_STREAM
from torchloom.bus.nats_link import Link, LinkSubscription
from torchloom.bus.nats_stream import NS_PER_S, api
from torchloom.bus.protocol import REQUEST_TIMEOUT_S, Record
from torchloom.errors import StreamRewound, TimedOut

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
SILENCE_S = 3.5 * HEARTBEAT_S
"""Without even a heartbeat for so long, the consumer is gone."""
RETRY_AFTER_S = 0.1


class _Delivery:
    """One throw-away consumer and the messages it has pushed to us so far."""

    def __init__(self, link: Link) -> None:
        self.waiting: deque[Any] = deque()
        self._arrived = asyncio.Event()
        self._link = link
        self._subscription: LinkSubscription | None = None
        self._lost = asyncio.ensure_future(link.until_lost())
        self._lost.add_done_callback(lambda _: self._arrived.set())

    async def open(self, after: int) -> None:
        inbox = self._link.client.new_inbox()
        self._subscription = await self._link.subscribe(inbox, self._receive)
        await api(
            self._link,
            f"CONSUMER.CREATE.{EVENT_STREAM}",
            {
                "stream_name": EVENT_STREAM,
                "config": {
                    "deliver_subject": inbox,
                    "deliver_policy": "by_start_sequence",
                    "opt_start_seq": after + 1,
                    "ack_policy": "none",
                    "max_deliver": 1,
                    "replay_policy": "instant",
                    "flow_control": True,
                    "idle_heartbeat": int(HEARTBEAT_S * NS_PER_S),
                    "inactive_threshold": int(5 * NS_PER_S),
                    "mem_storage": True,
                    "num_replicas": 1,
                },
            },
            REQUEST_TIMEOUT_S,
        )

    async def _receive(self, message: Any) -> None:
        self.waiting.append(message)
        self._arrived.set()

    async def more(self) -> bool:
        """Wait for a message. False: no more will come."""
        self._arrived.clear()
        if self.waiting:
            return True
        if self._lost.done():
            return False
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._arrived.wait()
        except TimeoutError:
            log.info("the event consumer fell silent; making a new one")
            return False
        return bool(self.waiting)

    async def close(self) -> None:
        self._lost.cancel()
        if self._subscription is not None:
            await self._subscription.unsubscribe()


async def read_events(link: Link, after: int) -> AsyncGenerator[Record, None]:
    while not link.closed:
        delivery = _Delivery(link)
        try:
            await _check_not_rewound(link, after)
            await delivery.open(after)
            expected = 1
            while await delivery.more():
                # The server holds back more than its flow-control window until we have got through these, so
                # a slow reader costs bounded memory.
                message = delivery.waiting.popleft()
                status = (message.headers or {}).get("Status")
                if status is not None:
                    if await _in_step(link, message, status, expected):
                        continue
                    break
                record, number = parse_delivery(message)
                if number != expected:
                    log.info("event deliveries %d to %d are missing; reading again", expected, number - 1)
                    break
                expected += 1
                after = record.seq
                yield record
        except TimedOut as error:
            if not link.closed:
                log.info("cannot read events now (%s); trying again", error.message)
                await asyncio.sleep(RETRY_AFTER_S)
        finally:
            await delivery.close()


async def _check_not_rewound(link: Link, after: int) -> None:
    state = (await api(link, f"STREAM.INFO.{EVENT_STREAM}", None, REQUEST_TIMEOUT_S))["state"]
    if int(state["last_seq"]) < after:
        raise StreamRewound(
            f"the event stream ends at {state['last_seq']}, but {after} was already read",
            hint="its store was replaced; restart the weaver to begin with what the stream holds",
        )


async def _in_step(link: Link, message: Any, status: str, expected: int) -> bool:
    """Answer flow control and compare the server's count with ours on a heartbeat."""
    if status != "100":
        return False
    if message.reply:
        await link.publish(message.reply, b"")
        return True
    if stalled := message.headers.get("Nats-Consumer-Stalled"):
        await link.publish(stalled, b"")
    return int(message.headers.get("Nats-Last-Consumer", expected - 1)) == expected - 1


def parse_delivery(message: Any) -> tuple[Record, int]:
    """The record, and its number among this consumer's deliveries.

    The server writes them into the reply subject:
    `$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<number>.<time>.<pending>`; a longer form has a
    domain and an account before the stream.
    """
    tokens = message.reply.split(".")
    at = 5 if len(tokens) == 9 else 7
    seq, number, at_ns = (int(token) for token in tokens[at : at + 3])
    return Record(seq, message.subject, message.data, at_ns), number
