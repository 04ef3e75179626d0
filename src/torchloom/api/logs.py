"""Routes of worker logs: a piece of them, or a live stream that resumes where it was cut.

The id of a streamed event is the place in every rank's log, `0:1234,1:456`, so a client that comes back with
`Last-Event-ID` loses nothing and sees nothing twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Annotated

from fastapi import APIRouter, Header, Query

from torchloom.api.find import job_of, ranks_of
from torchloom.api.log_stream import PIECE_BYTES, LogStream, matching, parse_id
from torchloom.api.ports import Control
from torchloom.api.schemas import JobLogs, LogEnd, LogLines, LogView
from torchloom.api.sse import EventStream
from torchloom.errors import LoomError

AT_ONCE = 16
MOST_SEARCHED = 96 << 20
"""Bytes of one rank's log that a search reads; an agent keeps fewer."""

Rank = Annotated[int | None, Query(ge=0, le=2**31)]
Grep = Annotated[str, Query(max_length=256)]


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["logs"])

    @router.get("/jobs/{job}/logs", operation_id="logs")
    async def logs(
        job: str,
        rank: Rank = None,
        tail: Annotated[int, Query(ge=1, le=100_000)] = 100,
        offset: Annotated[int | None, Query(ge=0, le=2**53)] = None,
        grep: Grep = "",
    ) -> JobLogs:
        """The last `tail` lines of each rank, or what comes after the byte `offset`.

        With `grep`, only lines that contain this text. A piece is less than a MiB; `next_offset` leads on.
        """
        ranks = ranks_of(job_of(control, job), rank)
        slots = asyncio.Semaphore(AT_ONCE)

        async def read(number: int) -> LogView:
            async with slots:
                try:
                    if grep and offset is None:
                        return await _search(control, job, number, grep, tail)
                    return await _piece(control, job, number, -tail if offset is None else offset, grep)
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
        last_event_id: Annotated[str | None, Header(max_length=65_536)] = None,
    ) -> EventStream:
        """Server-sent events `log` and finally `end`; `tail` limits how far back a new stream begins."""
        ranks = ranks_of(job_of(control, job), rank)
        places = dict.fromkeys(ranks, -tail if tail else 0)
        places.update({k: v for k, v in parse_id(last_event_id or "").items() if k in places})
        from_end = tail == 0 and not last_event_id
        return EventStream(LogStream(control, job, places, from_end, grep).events())

    return router


async def _piece(control: Control, job: str, rank: int, offset: int, grep: str) -> LogView:
    piece = await control.read_log(job, rank, offset, PIECE_BYTES)
    text = piece.data.decode(errors="replace")
    return LogView(
        rank=rank,
        text=matching(text, grep) if grep else text,
        offset=piece.offset,
        next_offset=piece.next_offset,
        lost_bytes=piece.lost_bytes,
    )


async def _search(control: Control, job: str, rank: int, grep: str, tail: int) -> LogView:
    """The last matching lines of everything that is kept."""
    lines: deque[str] = deque(maxlen=tail)
    begin, place, lost = 0, 0, 0
    while place - begin < MOST_SEARCHED:
        piece = await control.read_log(job, rank, place, PIECE_BYTES)
        if place == 0:
            begin, lost = piece.offset, piece.lost_bytes
        lines.extend(matching(piece.data.decode(errors="replace"), grep).splitlines(keepends=True))
        if piece.next_offset <= place:
            break
        place = piece.next_offset
    return LogView(rank=rank, text="".join(lines), offset=begin, next_offset=place, lost_bytes=lost)
