"""Follows the logs of some ranks of one job to their end, in the order of time. Owns no route.

It requests the next piece of a rank's log while the previous one is on its way to the client; otherwise a
stream would spend most of its time on round trips to the agent. A line is sent when every other rank was read
after it was printed: then none of them can have an earlier one. With more than `AT_ONCE` ranks, silent ones
are read less often, and a line of theirs may come up to `IDLE_POLL_S` late.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Iterator

from torchloom.api.log_order import Merge, Stretch, stretches
from torchloom.api.ports import Control
from torchloom.api.sse import COMMENT, KEEP_ALIVE_S, event
from torchloom.errors import LoomError, NotFound, UsageError
from torchloom.model.messages import LogPiece

PIECE_BYTES = 960 * 1024
"""The most an agent gives at once."""
PART_BYTES = 8 * 1024
"""A piece is sent in events of about this size, each with its place: a client that reconnects resumes after
the last whole event, and a long event would never get through a connection that is cut again and again."""
AHEAD_SHARE = 4
"""After a piece of at least this part of what was asked for more is likely: the next is requested ahead."""
MOST_HELD = 32 << 20
"""Bytes of all ranks' logs together that wait for their turn, about."""
LEAST_PIECE = 64 * 1024
WRITE_BYTES = 64 * 1024
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


def _joined(events: Iterator[bytes]) -> Iterator[bytes]:
    """Several events at once: each write to the connection costs as much as a whole one."""
    held = bytearray()
    for one in events:
        held += one
        if len(held) >= WRITE_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


async def read_timed(
    control: Control,
    job: str,
    rank: int,
    offset: int,
    max_bytes: int,
    since_ns: int = 0,
    unfinished: bool = False,
) -> tuple[LogPiece, int]:
    """A piece, and what to add to its times: the difference of the clocks if it is more than the journey."""
    asked_ns = time.time_ns()
    piece = await control.read_log(job, rank, offset, max_bytes, since_ns, unfinished)
    answered_ns = time.time_ns()
    if not piece.now_ns or asked_ns <= piece.now_ns <= answered_ns:
        return piece, 0
    return piece, (asked_ns + answered_ns) // 2 - piece.now_ns


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
        unfinished: bool = False,
    ) -> None:
        self._control = control
        self._job = job
        self._places = places
        """Up to where each rank's log is sent."""
        self._next = dict(places)
        """Up to where it is read."""
        self._grep = grep
        self._since_ns = since_ns or {}
        """By rank, until its first piece has arrived and its place is known."""
        self._pause = dict.fromkeys(places, 0.0)
        self._due = dict.fromkeys(places, 0.0)
        self._skip_first = set(places) if from_end else set()
        """Ranks whose past is not wanted: their first piece only shows where the log ends."""
        self._want_unfinished = unfinished
        self._unfinished: dict[int, bytes] = {}
        """The line without an end that each rank has, and the one that was sent of it."""
        self._unfinished_sent: dict[int, bytes] = {}
        self._piece_bytes = min(PIECE_BYTES, max(LEAST_PIECE, MOST_HELD // max(1, len(places))))
        self._merge = Merge()
        self._more: dict[int, int] = {}
        """Ranks of which more is to be read, and the time of the last line that was."""
        self._ahead: dict[int, asyncio.Task[tuple[LogPiece, int] | None]] = {}
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
            now, now_ns = loop.time(), time.time_ns()
            read = await self._read_due(ended)
            moved = False
            for chunk in _joined(self._ready(now_ns, ended)):
                moved, spoke = True, loop.time()
                yield chunk
            if ended and not moved and not read:
                give_up = give_up or now + LAST_WORDS_WITHIN_S
                if not self._unread or found is None or now > give_up:
                    state = str(found.state) if found else "deleted"
                    body = {"state": state, "unread_ranks": sorted(self._unread)}
                    yield event("end", body, self._id())
                    return
            if loop.time() - spoke > KEEP_ALIVE_S:
                spoke = loop.time()
                yield COMMENT
            if not self._more and not (ended and read):
                next_due = min(self._due.values(), default=now) if self._merge.empty else now
                pause_s = min(IDLE_POLL_S, max(POLL_S, next_due - loop.time()))
                # Not a mere sleep: the end of the job ends the stream at once.
                await self._control.changed(seq, pause_s)

    def _id(self) -> str:
        """Omits ranks whose place is only given by `since`: a client that reconnects sends `since` again."""
        return format_id({rank: at for rank, at in self._places.items() if rank not in self._since_ns})

    # ---- reading ----

    async def _read_due(self, ended: bool) -> bool:
        """Read the ranks whose turn it is. Returns whether any had something new."""
        now = asyncio.get_running_loop().time()
        free = [rank for rank in self._places if not self._merge.holds(rank)]
        due = [rank for rank in free if ended or self._due[rank] <= now]
        # The order of few ranks is exact: none of them is left out in a round.
        ranks = free if len(self._places) <= AT_ONCE and (due or not self._merge.empty) else due
        news = False
        for start in range(0, len(ranks), AT_ONCE):
            batch = ranks[start : start + AT_ONCE]
            pieces = await asyncio.gather(*(self._piece(rank) for rank in batch))
            for rank, piece in zip(batch, pieces, strict=True):
                news = self._take(rank, piece) or news
        return news

    async def _piece(self, rank: int) -> tuple[LogPiece, int] | None:
        task = self._ahead.pop(rank, None)
        return await (task if task is not None else self._read(rank, self._next[rank]))

    async def _read(self, rank: int, place: int) -> tuple[LogPiece, int] | None:
        try:
            since_ns, bars = self._since_ns.get(rank, 0), self._want_unfinished
            found = await read_timed(self._control, self._job, rank, place, self._piece_bytes, since_ns, bars)
        except NotFound:
            self._unread.discard(rank)
            return None
        except LoomError:
            # The node does not answer now. Its log is on its disk: the next try reads the same place.
            self._unread.add(rank)
            return None
        self._unread.discard(rank)
        return found

    def _take(self, rank: int, found: tuple[LogPiece, int] | None) -> bool:
        """Account for a piece of a rank's log. Returns whether there was anything new."""
        self._more.pop(rank, None)
        news = False
        if found is not None:
            piece, shift_ns = found
            self._next[rank] = piece.next_offset
            if rank in self._skip_first:
                self._skip_first.discard(rank)
                self._places[rank] = piece.next_offset
            else:
                self._places[rank] = piece.offset
                news = bool(piece.data) or piece.lost_bytes > 0
            self._since_ns.pop(rank, None)
            if news:
                self._add(rank, piece, shift_ns)
            news = self._take_unfinished(rank, piece) or news
        self._pause[rank] = 0.0 if news else min(IDLE_POLL_S, max(POLL_S, self._pause[rank] * 1.5))
        self._due[rank] = asyncio.get_running_loop().time() + self._pause[rank]
        return news

    def _add(self, rank: int, piece: LogPiece, shift_ns: int) -> None:
        cut = list(stretches(rank, piece, shift_ns))
        self._merge.add(cut)
        if len(piece.data) * AHEAD_SHARE >= self._piece_bytes:
            self._more[rank] = cut[-1].at_ns
            self._ahead[rank] = asyncio.create_task(self._read(rank, piece.next_offset))

    def _take_unfinished(self, rank: int, piece: LogPiece) -> bool:
        changed = piece.unfinished != self._unfinished.get(rank, b"")
        self._unfinished[rank] = piece.unfinished
        return changed

    # ---- sending ----

    def _ready(self, now_ns: int, ended: bool) -> Iterator[bytes]:
        """The events that no other can precede: all that was printed before this round of reading began."""
        horizon_ns = min([2**63 if ended else now_ns, *self._more.values()])
        for stretch in self._merge.take(now_ns, horizon_ns):
            yield from self._tell(stretch)
            self._unfinished_sent.pop(stretch.rank, None)  # the client takes it away with the next line
        for rank, data in self._unfinished.items():
            if data != self._unfinished_sent.get(rank, b"") and not self._merge.holds(rank):
                self._unfinished_sent[rank] = data
                yield event("unfinished", {"rank": rank, "text": data.decode(errors="replace")}, self._id())

    def _tell(self, stretch: Stretch) -> Iterator[bytes]:
        rank, lost = stretch.rank, stretch.lost_bytes
        most = max(PART_BYTES, 4 * len(self._id()))  # the places of many ranks take room themselves
        self._places[rank] = stretch.offset
        for part in parts(stretch.data, most, whole_lines=bool(self._grep)):
            self._places[rank] += len(part)
            text = part.decode(errors="replace")
            if self._grep:
                text = matching(text, self._grep)
            if text or lost:
                body = {"rank": rank, "text": text, "lost_bytes": lost, "at_ns": stretch.at_ns}
                yield event("log", body, self._id())
                lost = 0
