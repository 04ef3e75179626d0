"""Routes of worker logs: a piece of them, or a live stream that resumes where it was cut.

The id of a streamed event is the place in every rank's log, `0:1234,1:456`, so a client that reconnects with
`Last-Event-ID` loses nothing and sees nothing twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Annotated

from fastapi import APIRouter, Header, Query

from torchloom.api.find import job_of, ranks_of
from torchloom.api.log_stream import PIECE_BYTES, LogStream, matching, parse_id
from torchloom.api.ports import Control
from torchloom.api.schemas.bodies import JobLogs, LogEnd, LogLines, LogView
from torchloom.api.since import parse_since
from torchloom.api.sse import EventStream
from torchloom.errors import LoomError

AT_ONCE = 16
MOST_SEARCHED = 96 << 20
"""Bytes of one rank's log that a search reads; an agent keeps fewer."""
MOST_FOUND = 100_000
"""Lines of one rank that a search gives."""
DEFAULT_TAIL = 100

Rank = Annotated[int | None, Query(ge=0, le=2**31)]
Grep = Annotated[str, Query(max_length=256)]
Since = Annotated[str, Query(max_length=64, examples=["10m", "2026-03-01T12:00:00Z"])]


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["logs"])

    @router.get("/jobs/{job}/logs", operation_id="logs")
    async def logs(
        job: str,
        rank: Rank = None,
        tail: Annotated[int | None, Query(ge=1, le=100_000)] = None,
        offset: Annotated[int | None, Query(ge=0, le=2**53)] = None,
        grep: Grep = "",
        since: Since = "",
    ) -> JobLogs:
        """The last `tail` (100) lines of each rank, or what comes after the byte `offset` or `since` a time.

        With `grep`, only lines that contain this text. `since` is a time as in RFC 3339, or a span of time
        ago like `10m`. A piece is less than a MiB; `next_offset` leads on.
        """
        ranks = ranks_of(job_of(control, job), rank)
        since_ns = parse_since(since, time.time_ns())
        place = offset if offset is not None else 0 if since and tail is None else -(tail or DEFAULT_TAIL)
        slots = asyncio.Semaphore(AT_ONCE)

        async def read(number: int) -> LogView:
            async with slots:
                try:
                    if grep and offset is None:
                        most = tail or (None if since else DEFAULT_TAIL)
                        return await _search(control, job, number, grep, most, since_ns)
                    return await _piece(control, job, number, place, grep, since_ns)
                except LoomError as error:
                    return LogView(
                        rank=number, text="", offset=0, next_offset=0, lost_bytes=0, error=str(error)
                    )

        return JobLogs(job=job, logs=list(await asyncio.gather(*(read(number) for number in ranks))))

    @router.get(
        "/jobs/{job}/logs/stream",
        operation_id="logStream",
        status_code=200,
        response_class=EventStream,
        responses={200: {"model": LogLines | LogEnd, "description": "A stream of server-sent events"}},
    )
    async def stream(
        job: str,
        rank: Rank = None,
        tail: Annotated[int | None, Query(ge=0, le=100_000)] = None,
        grep: Grep = "",
        since: Since = "",
        last_event_id: Annotated[str | None, Header(max_length=65_536)] = None,
    ) -> EventStream:
        """Server-sent events `log` and finally `end`; `tail` or `since` set how far back it starts."""
        ranks = ranks_of(job_of(control, job), rank)
        since_ns = parse_since(since, time.time_ns())
        places = dict.fromkeys(ranks, -tail if tail else 0)
        known = parse_id(last_event_id or "")
        places.update({k: v for k, v in known.items() if k in places})
        from_end = tail == 0 and not last_event_id
        since_of = {rank: since_ns for rank in places if rank not in known} if since_ns else {}
        return EventStream(LogStream(control, job, places, from_end, grep, since_of).events())

    return router


async def _piece(control: Control, job: str, rank: int, offset: int, grep: str, since_ns: int) -> LogView:
    piece = await control.read_log(job, rank, offset, PIECE_BYTES, since_ns)
    text = piece.data.decode(errors="replace")
    return LogView(
        rank=rank,
        text=matching(text, grep) if grep else text,
        offset=piece.offset,
        next_offset=piece.next_offset,
        lost_bytes=piece.lost_bytes,
    )


async def _search(
    control: Control, job: str, rank: int, grep: str, tail: int | None, since_ns: int
) -> LogView:
    """The last matching lines of everything that is kept and new enough."""
    lines: deque[str] = deque(maxlen=min(tail or MOST_FOUND, MOST_FOUND))
    piece = await control.read_log(job, rank, 0, PIECE_BYTES, since_ns)
    begin, lost, place = piece.offset, piece.lost_bytes, piece.offset
    while piece.next_offset > place and place - begin < MOST_SEARCHED:
        lines.extend(matching(piece.data.decode(errors="replace"), grep).splitlines(keepends=True))
        place = piece.next_offset
        piece = await control.read_log(job, rank, place, PIECE_BYTES)
    return LogView(rank=rank, text="".join(lines), offset=begin, next_offset=place, lost_bytes=lost)
