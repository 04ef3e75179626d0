"""Workers connected to a lighthouse: they get news of deaths and agree to changes of settings.

One line of JSON is one message. A worker names its door (and its port, if it is of this node) and its rank
once; a connection without a name only receives news. core/replica_changes.py has the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from torchloom.core import replica_changes
from torchloom.core.replica_changes import ChangeBoard, Rank, RankReport
from torchloom.model.quorum import QuorumMember, ReplicaChange, ReplicaOutcome

_LONGEST_LINE = 1 << 20
_GONE_KEPT = 64


class WorkerLine(Struct, frozen=True):
    """What a worker says: who it is, what it asks, or what it answers about a version."""

    door: str = ""
    port: int = 0
    rank: int = 0
    ask: int = 0
    version: int = 0
    problem: str | None = None
    changed: tuple[tuple[str, Any, Any], ...] = ()
    trouble: str | None = None
    leaving: bool = False


class Listeners:
    def __init__(
        self,
        changes: list[ReplicaChange],
        doors: Mapping[str, int],
        save: Callable[[], None],
        leaves: Callable[[str], None],
        held: Callable[[str], bool] = lambda door: False,
    ) -> None:
        self._board = ChangeBoard(changes)
        self._doors = doors
        """Port by door."""
        self._save = save
        self._leaves = leaves
        """A replica behind this door makes no further step."""
        self._held = held
        """Whether the replica behind a door takes part in no quorum at present."""
        self._gone: dict[str, int] = {}
        """Replica ids and the quorum in which they were reported, the newest last. Whoever connects again may
        have missed it: on a node that was cut off, that it is without it that the others continue."""
        self._writers: dict[asyncio.StreamWriter, Rank | None] = {}

    # -- connections ----------------------------------------------------------------------------
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = None
        try:
            while line := await reader.readline():
                self._take(writer, msgspec.json.decode(line, type=WorkerLine))
        except (OSError, ValueError, RecursionError):
            pass  # a line that is too long, cannot be read, or is nested without end: whoever it is, let go
        finally:
            rank = self._writers.pop(writer, None)
            if rank is not None and rank not in self._writers.values():
                replica_changes.disconnected(self._board, rank)
            writer.close()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def tell_gone(self, quorum: int, ids: Sequence[str]) -> None:
        """These have ended or cannot be reached: up to this quorum, nothing that waits for them can end."""
        for id in ids:
            self._gone.pop(id, None)
            self._gone[id] = quorum
        while len(self._gone) > _GONE_KEPT:
            del self._gone[next(iter(self._gone))]
        if ids:
            self.tell({"quorum": quorum, "gone": ids})

    def tell(self, message: Mapping[str, Any]) -> None:
        line = msgspec.json.encode(message) + b"\n"
        for writer in self._writers:
            writer.write(line)

    def tell_door(self, door: str, message: Mapping[str, Any]) -> None:
        line = msgspec.json.encode(message) + b"\n"
        for writer, rank in self._writers.items():
            if rank is not None and rank[0] == door:
                writer.write(line)

    def _take(self, writer: asyncio.StreamWriter, line: WorkerLine) -> None:
        if line.port:
            found = (door for door, port in self._doors.items() if port == line.port)
            door = line.door if line.door in self._doors else next(found, "")
            self._writers[writer] = (door, line.rank) if door else None
        rank = self._writers[writer]
        if rank is None:
            return
        if line.problem is not None and replica_changes.answer(self._board, rank, line.version, line.problem):
            self._changed()
        if line.trouble is not None:
            done = RankReport(line.changed, line.trouble)
            if replica_changes.report(self._board, rank, line.version, done):
                self._changed()
        if line.leaving:
            self._leaves(rank[0])
        if line.port and self._held(rank[0]):
            writer.write(msgspec.json.encode({"held": True}) + b"\n")
        if line.port or line.ask:
            writer.write(msgspec.json.encode(self._changes_message(line.ask)) + b"\n")
        if line.port:
            for quorum in sorted(set(self._gone.values())):
                ids = [id for id, at in self._gone.items() if at == quorum]
                writer.write(msgspec.json.encode({"quorum": quorum, "gone": ids}) + b"\n")

    def _changes_message(self, asked: int = 0) -> dict[str, Any]:
        changes = [
            {"version": c.version, "values": c.values, "step": c.step, "kind": c.kind}
            for c in self._board.changes
            if not c.refused
        ]
        return {"changes": changes, "asked": asked}

    def _changed(self) -> None:
        self._save()
        self.tell(self._changes_message())

    # -- changes --------------------------------------------------------------------------------
    def propose(self, version: int, values: Mapping[str, Any], at_step: int, kind: str = "set") -> None:
        if replica_changes.propose(self._board, version, values, at_step, kind):
            self._changed()

    def withdraw(self, version: int, why: str) -> None:
        if replica_changes.withdraw(self._board, version, why):
            self._changed()

    def decide(self, members: Sequence[tuple[str, QuorumMember]]) -> None:
        """A quorum of these doors is about to be answered: whatever it decides must be recorded first."""
        if not any(change.open for change in self._board.changes):
            return
        step = max(member.step for _, member in members) + 1
        if replica_changes.decide(self._board, step, {door: member.world_size for door, member in members}):
            self._changed()

    def outcome(self, version: int) -> ReplicaOutcome | None:
        return replica_changes.outcome(self._board, version, self._doors)
