"""Follows the logs of some ranks of one job to their end. Owns no route.

It requests the next piece of a rank's log while the previous one is on its way to the client; otherwise a
stream would spend most of its time on round trips to the agent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator

from torchloom.api.ports import Control
from torchloom.api.sse import COMMENT, KEEP_ALIVE_S, event
from torchloom.errors import LoomError, NotFound, UsageError
from torchloom.model.messages import LogPiece

PIECE_BYTES = 960 * 1024
"""The most an agent gives at once."""
PART_BYTES = 8 * 1024
"""A piece is sent in events of about this size, each with its place: a client that reconnects resumes after
the last whole event, and a long event would never get through a connection that is cut again and again."""
AHEAD_FROM_BYTES = PIECE_BYTES // 4
"""After a piece of at least this size more is likely, so the next piece is requested ahead."""
POLL_S = 0.05
IDLE_POLL_S = 0.4
"""A rank that prints nothing is polled less and less often, down to this interval."""
AT_ONCE = 16
LAST_WORDS_WITHIN_S = 30.0
"""How long after the end of a job to wait for a node that does not answer."""

_ID = re.compile(r"[0-9]{1,5}:[0-9]{1,15}(,[0-9]{1,5}:[0-9]{1,15})*")


def parse_id(text: str) -> dict[int, int]:
    """`0:1234,1:456` as places by rank."""
    if not text:
        return {}
    if not _ID.fullmatch(text) or len(text) > 65_536:
        raise UsageError("Last-Event-ID is not one of ours.")
    return {int(rank): int(place) for rank, place in (pair.split(":") for pair in text.split(","))}


def format_id(places: dict[int, int]) -> str:
    return ",".join(f"{rank}:{place}" for rank, place in places.items() if place >= 0)


def matching(text: str, grep: str) -> str:
    """The lines that contain a text. Not a pattern: a hostile pattern could run forever."""
    return "".join(line for line in text.splitlines(keepends=True) if grep in line)


def parts(data: bytes, most: int, whole_lines: bool) -> Iterator[bytes]:
    """Cut a piece at line ends; unless `whole_lines`, cut a line that is too long between characters."""
    start = 0
    while len(data) - start > most:
        end = data.rfind(b"\n", start, start + most) + 1
        if not end and whole_lines:
            end = data.find(b"\n", start + most) + 1 or len(data)
        elif not end:
            end = start + most
            while end > start + most - 3 and data[end] & 0xC0 == 0x80:
                end -= 1
        yield data[start:end]
        start = end
    if start < len(data) or not data:
        yield data[start:]


class LogStream:
    """Follows the logs of some ranks of one job until it has ended and all is sent."""

    def __init__(
        self,
        control: Control,
        job: str,
        places: dict[int, int],
        from_end: bool,
        grep: str = "",
        since_ns: dict[int, int] | None = None,
    ) -> None:
        self._control = control
        self._job = job
        self._places = places
        self._grep = grep
        self._since_ns = since_ns or {}
        """By rank, until its first piece has arrived and its place is known."""
        self._pause = dict.fromkeys(places, 0.0)
        self._due = dict.fromkeys(places, 0.0)
        self._skip_first = set(places) if from_end else set()
        """Ranks whose past is not wanted: their first piece only shows where the log ends."""
        self._ahead: dict[int, asyncio.Task[LogPiece | None]] = {}
        self._unread: set[int] = set()
        """Ranks whose node did not answer the last time."""

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in self._follow():
                yield chunk
        finally:
            for task in self._ahead.values():
                task.cancel()

    async def _follow(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        spoke, give_up = loop.time(), 0.0
        yield b": torchloom logs\nretry: 500\n\n"
        while True:
            # Read the state first: everything printed before the job ended is then read below.
            seq = self._control.fleet.seq
            found = self._control.fleet.jobs.get(self._job)
            ended = found is None or found.ended
            now = loop.time()
            ranks = [rank for rank in self._places if ended or self._due[rank] <= now]
            moved = False
            for start in range(0, len(ranks), AT_ONCE):
                batch = ranks[start : start + AT_ONCE]
                pieces = await asyncio.gather(*(self._next(rank) for rank in batch))
                for rank, piece in zip(batch, pieces, strict=True):
                    news, chunk = self._take(rank, piece, loop.time())
                    moved = moved or news
                    if chunk:
                        spoke = loop.time()
                        yield chunk
            if ended and not moved:
                give_up = give_up or now + LAST_WORDS_WITHIN_S
                if not self._unread or found is None or now > give_up:
                    state = str(found.state) if found else "deleted"
                    body = {"state": state, "unread_ranks": sorted(self._unread)}
                    yield event("end", body, self._id())
                    return
            if loop.time() - spoke > KEEP_ALIVE_S:
                spoke = loop.time()
                yield COMMENT
            if not moved:
                next_due = min(self._due.values(), default=now)
                pause_s = min(IDLE_POLL_S, max(POLL_S, next_due - loop.time()))
                # Not a mere sleep: the end of the job ends the stream at once.
                await self._control.changed(seq, pause_s)

    def _id(self) -> str:
        """Omits ranks whose place is only given by `since`: a client that reconnects sends `since` again."""
        return format_id({rank: at for rank, at in self._places.items() if rank not in self._since_ns})

    async def _next(self, rank: int) -> LogPiece | None:
        task = self._ahead.pop(rank, None)
        return await (task if task is not None else self._read(rank, self._places[rank]))

    async def _read(self, rank: int, place: int) -> LogPiece | None:
        try:
            since_ns = self._since_ns.get(rank, 0)
            piece = await self._control.read_log(self._job, rank, place, PIECE_BYTES, since_ns)
        except NotFound:
            self._unread.discard(rank)
            return None
        except LoomError:
            # The node does not answer now. Its log is on its disk: the next try reads the same place.
            self._unread.add(rank)
            return None
        self._unread.discard(rank)
        return piece

    def _take(self, rank: int, piece: LogPiece | None, now: float) -> tuple[bool, bytes]:
        """Account for a piece of a rank's log: whether there was anything new, and the events to send."""
        first = rank in self._skip_first
        if piece is not None:
            self._places[rank] = piece.next_offset
            self._skip_first.discard(rank)
            self._since_ns.pop(rank, None)
        news = piece is not None and (bool(piece.data) or piece.lost_bytes > 0) and not first
        self._pause[rank] = 0.0 if news else min(IDLE_POLL_S, max(POLL_S, self._pause[rank] * 1.5))
        self._due[rank] = now + self._pause[rank]
        if piece is None or not news:
            return False, b""
        if len(piece.data) >= AHEAD_FROM_BYTES:
            self._ahead[rank] = asyncio.create_task(self._read(rank, piece.next_offset))
        return True, b"".join(self._tell(rank, piece))

    def _tell(self, rank: int, piece: LogPiece) -> Iterator[bytes]:
        lost = piece.lost_bytes
        most = max(PART_BYTES, 4 * len(self._id()))  # the places of many ranks take room themselves
        self._places[rank] = piece.offset
        for part in parts(piece.data, most, whole_lines=bool(self._grep)):
            self._places[rank] += len(part)
            text = part.decode(errors="replace")
            if self._grep:
                text = matching(text, self._grep)
            if text or lost:
                yield event("log", {"rank": rank, "text": text, "lost_bytes": lost}, self._id())
                lost = 0
        self._places[rank] = piece.next_offset
