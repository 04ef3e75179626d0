"""The JetStream side of the bus: what is created, how an event is stored, what the server's errors mean.

Owns the configuration of the event stream, the lease bucket and the object bucket, and the one function that
stores a message with a condition. Reading is in `nats_reader.py`, leases in `nats_lease.py`.

The plain JSON API is used instead of nats-py's wrappers: its parts that matter here (timestamps, error codes,
conditions) are hidden there or differ between versions.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from torchloom.bus.nats_config import EVENT_STREAM, LEASE_BUCKET, OBJECT_BUCKET
from torchloom.bus.nats_link import Link
from torchloom.bus.protocol import EVENT_SUBJECTS, MAX_MESSAGE_BYTES
from torchloom.errors import (
    BusUnavailable,
    BusUnsuitable,
    Conflict,
    LoomError,
    NoResponder,
    NotFound,
    TimedOut,
)

MOST_BYTES = 2 << 30
"""Of all events that are kept. History is dropped long before (weaver/dropping.py)."""
ROOM_BYTES = 256 << 20
"""A weaver that starts on a full stream gets so much room, to record that it leads and to drop history."""

NS_PER_S = 1_000_000_000
DEDUPLICATION_S = 3600
RETRY_AFTER_S = 0.05

JS_NOT_ENABLED = (10039, 10076)
NO_MESSAGE_FOUND = 10037
STREAM_NOT_FOUND = 10059
STREAM_NAME_IN_USE = 10058
STREAM_FULL = 10077
TOO_MANY = 429
OVERLOADED = "the NATS server is given more events than it can store"
NEVER_STORED = EVENT_SUBJECTS.replace(">", "weaver.probe")
NO_RESOURCES = (10023, 10047)
TOO_FEW_SERVERS = (10005, 10074)
"""No server (with so much room) for one more copy; not a cluster at all."""
WRONG_LAST_SEQUENCE = (10071, 10164)
"""The second is the constant's form that newer servers use for the same refusal."""


def stream_configs(copies: int = 1) -> list[dict[str, Any]]:
    """What `provision` creates, named by NATS's own conventions so that its tools work on it."""
    common = {"storage": "file", "retention": "limits", "discard": "new", "num_replicas": copies}
    return [
        common
        | {
            "name": EVENT_STREAM,
            "subjects": [EVENT_SUBJECTS],
            "max_msg_size": MAX_MESSAGE_BYTES,
            "max_bytes": MOST_BYTES,
            "duplicate_window": DEDUPLICATION_S * NS_PER_S,
            "deny_delete": True,
        },
        common
        | {
            "name": f"KV_{LEASE_BUCKET}",
            "subjects": [f"$KV.{LEASE_BUCKET}.>"],
            # One per lease, and never aged out: the last revision must stay, or epochs could go backwards.
            "max_msgs_per_subject": 1,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
        },
        common
        | {
            "name": f"OBJ_{OBJECT_BUCKET}",
            "subjects": [f"$O.{OBJECT_BUCKET}.C.>", f"$O.{OBJECT_BUCKET}.M.>"],
            "allow_rollup_hdrs": True,
            "allow_direct": True,
        },
    ]


async def provision(link: Link, timeout_s: float, copies: int = 1) -> None:
    """Create what is missing. What is there keeps what it has, but gets more copies if it has too few."""
    try:
        raise_error(await link.api("INFO", None, timeout_s), link)
        for config in stream_configs(copies):
            name = config["name"]
            found = await link.api(f"STREAM.INFO.{name}", None, timeout_s)
            if error_code(found) == STREAM_NOT_FOUND:
                found = await link.api(f"STREAM.CREATE.{name}", config, timeout_s)
                # The disk is smaller than the limit, and so the limit; of a cluster, one disk of them.
                if error_code(found) in (*NO_RESOURCES, *TOO_FEW_SERVERS):
                    found = await link.api(f"STREAM.CREATE.{name}", config | {"max_bytes": -1}, timeout_s)
            elif not found.get("error"):
                found = await _copied(link, found, copies, timeout_s)
                if name == EVENT_STREAM and not found.get("error"):
                    await _bound(link, found, timeout_s)
            # Two weavers may create at the same time; the loser finds what it wanted.
            if error_code(found) == STREAM_NAME_IN_USE:
                continue
            if error_code(found) in TOO_FEW_SERVERS:
                raise BusUnsuitable(
                    f"the NATS servers at {link.address} cannot keep {copies} copies "
                    f"({found['error'].get('description', 'no reason given')})",
                    hint="start as many servers with JetStream in one cluster, or ask for fewer: --copies",
                )
            raise_error(found, link)
    except NoResponder:
        raise without_jetstream(link) from None


async def _copied(link: Link, found: dict[str, Any], copies: int, timeout_s: float) -> dict[str, Any]:
    """Give a stream that has too few copies more; what is known of it then."""
    config = found["config"]
    if config["num_replicas"] >= copies:
        return found
    return await link.api(f"STREAM.UPDATE.{config['name']}", config | {"num_replicas": copies}, timeout_s)


async def _bound(link: Link, found: dict[str, Any], timeout_s: float) -> None:
    """Give a stream that is there its limit of bytes, and one that is full a little room."""
    raise_error(found, link)
    config, held = found["config"], int(found["state"]["bytes"])
    most = max(MOST_BYTES, held + ROOM_BYTES)
    if int(config.get("max_bytes", -1)) != most:
        changed = await link.api(f"STREAM.UPDATE.{EVENT_STREAM}", config | {"max_bytes": most}, timeout_s)
        if error_code(changed) not in (*NO_RESOURCES, *TOO_FEW_SERVERS):
            raise_error(changed, link)


async def behind(link: Link, server: str, timeout_s: float) -> int:
    """How far the copies of one server are behind those of the leaders, by the leaders' account."""
    found = 0
    for config in stream_configs():
        info = await api(link, f"STREAM.INFO.{config['name']}", None, timeout_s)
        for copy in info.get("cluster", {}).get("replicas") or ():
            if copy["name"] == server and (copy.get("offline") or not copy["current"]):
                found += max(1, int(copy.get("lag", 0)))
    return found


async def takes_events(link: Link, within_s: float) -> bool:
    """Ask with an event whose condition nothing fulfils: it waits in line as others do and is not stored."""
    headers = {"Nats-Expected-Last-Subject-Sequence": str(2**62)}
    try:
        answer = await link.request(NEVER_STORED, b"", within_s, headers)
    except (TimedOut, BusUnavailable, NoResponder):
        return False
    return error_code(json.loads(answer.data)) in WRONG_LAST_SEQUENCE


async def take_events(link: Link, subjects: Sequence[str], timeout_s: float) -> None:
    """Change the subjects of the event stream, if they are others."""
    found = await api(link, f"STREAM.INFO.{EVENT_STREAM}", None, timeout_s)
    if sorted(found["config"]["subjects"]) != sorted(subjects):
        wanted = found["config"] | {"subjects": list(subjects)}
        await api(link, f"STREAM.UPDATE.{EVENT_STREAM}", wanted, timeout_s)


def without_jetstream(link: Link) -> BusUnsuitable:
    return BusUnsuitable(
        f"the NATS server at {link.address} has no JetStream for user {link.address.user!r}",
        hint="start nats-server with JetStream enabled (-js)",
    )


def error_code(answer: dict[str, Any]) -> int:
    return int(answer.get("error", {}).get("err_code", 0))


def raise_error(answer: dict[str, Any], link: Link) -> None:
    """Translate a JetStream refusal. Refusals that may pass (no leader, store full) are BusUnavailable."""
    error: dict[str, Any] | None = answer.get("error")
    if error is None:
        return
    code, text = error_code(answer), str(error.get("description", "no reason given"))
    if code in JS_NOT_ENABLED:
        raise without_jetstream(link)
    if code in WRONG_LAST_SEQUENCE:
        raise Conflict(f"the last event is another than expected ({text})")
    if code == STREAM_NOT_FOUND:
        raise NotFound("the stream does not exist on this NATS server", hint="start a weaver, it makes it")
    if code == STREAM_FULL:
        raise BusUnavailable(
            "the event stream has reached its limit of bytes and takes no more events",
            hint="look into the weaver's log for why history is not dropped, then restart the weaver",
        )
    if error.get("code") == TOO_MANY:
        raise BusUnavailable(OVERLOADED)
    if error.get("code") in (500, 503):
        # nats-server does not take space that was freed later into account: measured with 2.15.
        full = "free disk space and restart the NATS server" if "resources" in text else ""
        raise BusUnavailable(f"the NATS server cannot store or read now ({text})", hint=full)
    raise BusUnsuitable(f"the NATS server refused a JetStream call ({text})", hint="look into its log")


async def call(link: Link, verb: str, body: dict[str, Any] | None, timeout_s: float) -> dict[str, Any]:
    """A JetStream call that waits for the connection. Its answer may be a refusal."""
    await link.wait_connected(timeout_s)
    try:
        return await link.api(verb, body, timeout_s)
    except TimedOut as error:
        raise BusUnavailable(f"JetStream does not answer now ({error.message})") from None


async def api(link: Link, verb: str, body: dict[str, Any] | None, timeout_s: float) -> dict[str, Any]:
    """Like `call`, with a refusal raised as one of our errors."""
    answer = await call(link, verb, body, timeout_s)
    raise_error(answer, link)
    return answer


async def get_message(
    link: Link, stream: str, query: dict[str, Any], timeout_s: float
) -> dict[str, Any] | None:
    """A stored message, from the stream's leader and so never an old one; None if there is none."""
    return message_in(await call(link, f"STREAM.MSG.GET.{stream}", query, timeout_s), link)


def message_in(answer: dict[str, Any], link: Link) -> dict[str, Any] | None:
    """The message in the answer to such a call; None if there is none."""
    if error_code(answer) == NO_MESSAGE_FOUND:
        return None
    raise_error(answer, link)
    message: dict[str, Any] = answer["message"]
    return message


async def store(
    link: Link,
    subject: str,
    data: bytes,
    *,
    timeout_s: float,
    id: str | None = None,
    expect_last: int | None = None,
) -> int:
    """Store one message and return its sequence; tries again over lost connections until the time is up.

    Trying again is safe: with an id the server knows it already, and without one a condition makes the second
    fail if the first arrived. So one of the two is required.
    """
    assert id is not None or expect_last is not None
    headers: dict[str, str] = {}
    if id is not None:
        headers["Nats-Msg-Id"] = id
    if expect_last is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(expect_last)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    last_error: LoomError = BusUnavailable(f"NATS at {link.address} cannot be reached now")
    while (left := deadline - loop.time()) > 0:
        try:
            await link.wait_connected(left)
            answer = await link.request(subject, data, max(deadline - loop.time(), 0.001), headers)
            found: dict[str, Any] = json.loads(answer.data)
            if found.get("error", {}).get("code") != TOO_MANY:
                raise_error(found, link)
                return int(found["seq"])
            last_error = BusUnavailable(OVERLOADED)
        except Conflict:
            # The server looks at the condition before the id: it may be our own first try that broke it.
            if id is None or expect_last is None:
                raise
            if (mine := await _stored_before(link, subject, id, expect_last, left)) is None:
                raise
            return mine
        except NoResponder:
            last_error = BusUnavailable(
                "no stream takes this event", hint="start a weaver, it makes the stream"
            )
        except TimedOut as error:
            last_error = error
        await asyncio.sleep(min(RETRY_AFTER_S, max(deadline - loop.time(), 0)))
    raise BusUnavailable(
        f"{subject} was not acknowledged within {timeout_s:g} s ({last_error.message})", hint=last_error.hint
    )


async def _stored_before(link: Link, subject: str, id: str, after: int, timeout_s: float) -> int | None:
    """The sequence of our event, if it is the one that follows `after` on its subject.

    Stored under the condition "after", it can be nowhere else.
    """
    query = {"seq": after + 1, "next_by_subj": subject}
    message = await get_message(link, EVENT_STREAM, query, timeout_s)
    if message is None:
        return None
    headers = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")
    return int(message["seq"]) if f"Nats-Msg-Id: {id}" in headers else None


def parse_time_ns(stamp: str) -> int:
    """RFC 3339 as the server writes it, with up to nine digits, to nanoseconds since 1970."""
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * NS_PER_S + int(fraction.ljust(9, "0")[:9] or 0)
