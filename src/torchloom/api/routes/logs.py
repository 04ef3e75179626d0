"""Routes of worker logs: a piece of them, or a live stream that resumes where it was cut.

The id of a streamed event is the place in every rank's log, `0:1234,1:456`, so a client that reconnects with
`Last-Event-ID` loses nothing and sees nothing twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Header, Query

from torchloom.api.find import job_of, ranks_of
from torchloom.api.log_order import stretches
from torchloom.api.log_stream import PIECE_BYTES, LogStream, parse_id, read_timed
from torchloom.api.ports import Control
from torchloom.api.schemas.bodies import JobLogs, LogEnd, LogLine, LogLines, LogView, UnfinishedLine
from torchloom.api.since import parse_since
from torchloom.api.sse import EventStream
from torchloom.errors import LoomError
from torchloom.model.messages import LogPiece

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
        interleaved: bool = False,
        unfinished: bool = False,
    ) -> JobLogs:
        """The last `tail` (100) lines of each rank, or what comes after the byte `offset` or `since` a time.

        With `grep`, only lines that contain this text. `since` is a time as in RFC 3339, or a span of time
        ago like `10m`. A piece is less than a MiB; `next_offset` leads on. With `interleaved`, `lines` has
        the lines of all ranks in the order in which they were printed, and `text` is empty. With
        `unfinished` too, the newest part of a line that has no end yet, such as a progress bar, comes last.
        """
        ranks = ranks_of(job_of(control, job), rank)
        since_ns = parse_since(since, time.time_ns())
        place = offset if offset is not None else 0 if since and tail is None else -(tail or DEFAULT_TAIL)
        slots = asyncio.Semaphore(AT_ONCE)

        async def read(number: int) -> tuple[LogView, list[LogLine]]:
            async with slots:
                try:
                    if grep and offset is None:
                        most = tail or (None if since else DEFAULT_TAIL)
                        return await _search(control, job, number, grep, most, since_ns)
                    bar = unfinished and interleaved
                    return await _piece(control, job, number, place, grep, since_ns, bar)
                except LoomError as error:
                    empty = LogView(rank=number, text="", offset=0, next_offset=0, lost_bytes=0)
                    return empty.model_copy(update={"error": str(error)}), []

        found = await asyncio.gather(*(read(number) for number in ranks))
        if not interleaved:
            for view, lines in found:
                view.text = "".join(line.text for line in lines)
            return JobLogs(job=job, logs=[view for view, _ in found])
        merged = sorted((line for _, lines in found for line in lines), key=lambda line: line.at_ns)
        return JobLogs(job=job, logs=[view for view, _ in found], lines=merged)

    @router.get(
        "/jobs/{job}/logs/stream",
        operation_id="logStream",
        status_code=200,
        response_class=EventStream,
        responses={
            200: {
                "model": LogLines | UnfinishedLine | LogEnd,
                "description": "A stream of server-sent events",
            }
        },
    )
    async def stream(
        job: str,
        rank: Rank = None,
        tail: Annotated[int | None, Query(ge=0, le=100_000)] = None,
        grep: Grep = "",
        since: Since = "",
        unfinished: bool = False,
        last_event_id: Annotated[str | None, Header(max_length=65_536)] = None,
    ) -> EventStream:
        """Server-sent events `log` and finally `end`; `tail` or `since` set how far back it starts.

        Lines of several ranks come in the order in which they were printed. With `unfinished`, events
        `unfinished` show what a rank's last line looks like while it has no end.
        """
        ranks = ranks_of(job_of(control, job), rank)
        since_ns = parse_since(since, time.time_ns())
        places = dict.fromkeys(ranks, -tail if tail else 0)
        known = parse_id(last_event_id or "")
        places.update({k: v for k, v in known.items() if k in places})
        from_end = tail == 0 and not last_event_id
        since_of = {rank: since_ns for rank in places if rank not in known} if since_ns else {}
        return EventStream(LogStream(control, job, places, from_end, grep, since_of, unfinished).events())

    return router


async def _piece(
    control: Control, job: str, rank: int, offset: int, grep: str, since_ns: int, unfinished: bool
) -> tuple[LogView, list[LogLine]]:
    piece, shift_ns = await read_timed(control, job, rank, offset, PIECE_BYTES, since_ns, unfinished)
    view = LogView(
        rank=rank,
        text="",
        offset=piece.offset,
        next_offset=piece.next_offset,
        lost_bytes=piece.lost_bytes,
    )
    lines = [line for line in _lines(rank, piece, shift_ns) if grep in line.text]
    if piece.unfinished:
        bar = piece.unfinished.decode(errors="replace")
        lines.append(LogLine(rank=rank, at_ns=piece.now_ns + shift_ns, text=bar))
    return view, lines


async def _search(
    control: Control, job: str, rank: int, grep: str, tail: int | None, since_ns: int
) -> tuple[LogView, list[LogLine]]:
    """The last matching lines of everything that is kept and new enough."""
    lines: deque[LogLine] = deque(maxlen=min(tail or MOST_FOUND, MOST_FOUND))
    piece, shift_ns = await read_timed(control, job, rank, 0, PIECE_BYTES, since_ns)
    begin, lost, place = piece.offset, piece.lost_bytes, piece.offset
    while piece.next_offset > place and place - begin < MOST_SEARCHED:
        if grep.encode() in piece.data:
            lines.extend(line for line in _lines(rank, piece, shift_ns) if grep in line.text)
        place = piece.next_offset
        piece, shift_ns = await read_timed(control, job, rank, place, PIECE_BYTES)
    return LogView(rank=rank, text="", offset=begin, next_offset=place, lost_bytes=lost), list(lines)


def _lines(rank: int, piece: LogPiece, shift_ns: int) -> Iterator[LogLine]:
    for stretch in stretches(rank, piece, shift_ns):
        for line in stretch.data.decode(errors="replace").splitlines(keepends=True):
            yield LogLine(rank=rank, at_ns=stretch.at_ns, text=line)
