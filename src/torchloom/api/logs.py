"""Routes of worker logs: a piece of them, or a live stream that resumes where it was cut.

The id of a streamed event is the place in every rank's log, `0:1234,1:456`, so a client that comes back with
`Last-Event-ID` loses nothing and sees nothing twice.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from torchloom.api.find import job_of, ranks_of
from torchloom.api.ports import Control
from torchloom.api.schemas import JobLogs, LogView
from torchloom.errors import LoomError, NotFound, UsageError
from torchloom.model.messages import LogPiece

PIECE_BYTES = 256 * 1024
POLL_S = 0.05
IDLE_POLL_S = 0.4
"""A rank that prints nothing is asked ever less often, down to this."""
AT_ONCE = 32
COMMENT_EVERY_S = 10.0
"""A comment now and then, so that a client knows that silence is not a dead connection."""

_ID = re.compile(r"\d{1,5}:\d{1,15}(,\d{1,5}:\d{1,15})*")


def routes(control: Control) -> APIRouter:
    router = APIRouter()

    @router.get("/jobs/{job}/logs", operation_id="logs")
    async def logs(
        job: str,
        rank: Annotated[int | None, Query(ge=0)] = None,
        tail: Annotated[int, Query(ge=1, le=100_000)] = 100,
    ) -> JobLogs:
        ranks = ranks_of(job_of(control, job), rank)
        slots = asyncio.Semaphore(AT_ONCE)

        async def read(number: int) -> LogView:
            async with slots:
                return await _tail(control, job, number, tail)

        return JobLogs(job=job, logs=list(await asyncio.gather(*(read(number) for number in ranks))))

    @router.get("/jobs/{job}/logs/stream", operation_id="logStream", response_class=StreamingResponse)
    async def stream(
        job: str,
        rank: Annotated[int | None, Query(ge=0)] = None,
        tail: Annotated[int | None, Query(ge=0, le=100_000)] = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> StreamingResponse:
        """Server-sent events `log` and finally `end`; `tail` limits how far back a new stream begins."""
        ranks = ranks_of(job_of(control, job), rank)
        places = dict.fromkeys(ranks, -tail if tail else 0)
        places.update({k: v for k, v in parse_id(last_event_id or "").items() if k in places})
        return StreamingResponse(
            LogStream(control, job, places, from_end=tail == 0 and not last_event_id).events(),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    return router


async def _tail(control: Control, job: str, rank: int, lines: int) -> LogView:
    try:
        piece = await control.read_log(job, rank, -lines, PIECE_BYTES)
    except LoomError as error:
        return LogView(rank=rank, text="", offset=0, next_offset=0, lost_bytes=0, error=str(error))
    return LogView(
        rank=rank,
        text=piece.data.decode(errors="replace"),
        offset=piece.offset,
        next_offset=piece.next_offset,
        lost_bytes=piece.lost_bytes,
    )


def parse_id(text: str) -> dict[int, int]:
    """`0:1234,1:456` as places by rank."""
    if not text:
        return {}
    if not _ID.fullmatch(text) or len(text) > 65_536:
        raise UsageError("Last-Event-ID is not one of ours.")
    return {int(rank): int(place) for rank, place in (pair.split(":") for pair in text.split(","))}


def format_id(places: dict[int, int]) -> str:
    return ",".join(f"{rank}:{place}" for rank, place in places.items() if place >= 0)


class LogStream:
    """Follows the logs of some ranks of one job until it has ended and all is sent."""

    def __init__(self, control: Control, job: str, places: dict[int, int], from_end: bool) -> None:
        self._control = control
        self._job = job
        self._places = places
        self._pause = dict.fromkeys(places, 0.0)
        self._due = dict.fromkeys(places, 0.0)
        self._skip_first = set(places) if from_end else set()
        """Ranks whose past is not wanted: their first piece only tells where the end is."""

    async def events(self) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        spoke = loop.time()
        yield ": torchloom logs\n\n"
        while True:
            # Read the state first: what was printed before the end was seen is then surely read below.
            seq = self._control.fleet.seq
            found = self._control.fleet.jobs.get(self._job)
            ended = found is None or found.ended
            now = loop.time()
            ranks = [rank for rank in self._places if ended or self._due[rank] <= now]
            sent = False
            for start in range(0, len(ranks), AT_ONCE):
                batch = ranks[start : start + AT_ONCE]
                pieces = await asyncio.gather(*(self._read(rank) for rank in batch))
                for rank, piece in zip(batch, pieces, strict=True):
                    event = self._take(rank, piece, loop.time())
                    if event:
                        sent, spoke = True, loop.time()
                        yield event
            if ended and not sent:
                state = str(found.state) if found else "deleted"
                yield _event("end", {"state": state}, format_id(self._places))
                return
            if loop.time() - spoke > COMMENT_EVERY_S:
                spoke = loop.time()
                yield ": still here\n\n"
            if not sent:
                next_due = min(self._due.values(), default=now)
                pause_s = min(IDLE_POLL_S, max(POLL_S, next_due - loop.time()))
                # Not a mere sleep: the end of the job ends the stream at once.
                await self._control.changed(seq, pause_s)

    async def _read(self, rank: int) -> LogPiece | None:
        try:
            return await self._control.read_log(self._job, rank, self._places[rank], PIECE_BYTES)
        except NotFound:
            return None
        except LoomError:
            # The node cannot be asked now. Its log is on its disk: the next try reads the same place.
            return None

    def _take(self, rank: int, piece: LogPiece | None, now: float) -> str:
        """Account for a piece of a rank's log; the event to send, if it says anything."""
        first = rank in self._skip_first
        if piece is not None:
            self._places[rank] = piece.next_offset
            self._skip_first.discard(rank)
        news = piece is not None and (bool(piece.data) or piece.lost_bytes > 0) and not first
        self._pause[rank] = 0.0 if news else min(IDLE_POLL_S, max(POLL_S, self._pause[rank] * 1.5))
        self._due[rank] = now + self._pause[rank]
        if piece is None or not news:
            return ""
        body = {"rank": rank, "text": piece.data.decode(errors="replace"), "lost_bytes": piece.lost_bytes}
        return _event("log", body, format_id(self._places))


def _event(kind: str, body: dict[str, object], id: str) -> str:
    return f"event: {kind}\nid: {id}\ndata: {json.dumps(body)}\n\n"
