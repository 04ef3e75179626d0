"""One generation of a job as the detectors know it: newest windows, what was learned, asked and reported."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from torchloom.core.detect.board import WindowBoard
from torchloom.core.detect.judge import Memory
from torchloom.core.policy.reporting import Seen
from torchloom.model.findings import RankEvidence
from torchloom.model.fleet import Job
from torchloom.model.windows import WindowBlock


@dataclass
class WatchedJob:
    """One job's generation as the detectors know it."""

    generation: int
    memory: Memory
    board: WindowBoard
    """The newest window of every rank."""
    sent_s: array[float]
    """When each was sent, which may be long before it arrived."""
    incarnations: dict[int, int] = field(default_factory=dict)
    fresh: set[int] = field(default_factory=set)
    """Ranks of which there is a window that was not looked at yet."""
    urgent: bool = False
    """Something other than a window is new: the evidence that was requested."""
    looked_s: float = 0.0
    took_s: float = 0.0
    """When it was last judged, and for how long."""
    faults: dict[str, Seen] = field(default_factory=dict)
    evidence: dict[int, RankEvidence] = field(default_factory=dict)
    """Of those that hold the job up, as it came in."""
    fresh_evidence: dict[int, RankEvidence] = field(default_factory=dict)
    """The part of it that has not been reported yet."""
    stuck_s: float | None = None
    """Since when the job has been found to be held up."""
    asked_s: float = 0.0
    all_asked_s: float = 0.0
    """When all ranks were last asked, and not only those to blame …"""
    asked_about: tuple[object, ...] = ()
    """… and what was found then."""
    asking: asyncio.Task[None] | None = None
    second: asyncio.Task[None] | None = None
    """Asks torch's Flight Recorder, once for each time that the job stands still."""
    all_answered: bool = False
    measured_s: float = 0.0
    """When the pace of a job with uneven shares was last reported."""

    def is_due(self, ranks: int, now_s: float, every_s: float, rest: float) -> bool:
        """Whether to judge now: at once when every rank has a new window or evidence has arrived, else at
        intervals, so that a job on many hosts is not judged for each of them. After a look it rests for so
        many times as long as that took."""
        if self.urgent:
            return True
        if now_s - self.looked_s < rest * self.took_s:
            return False  # of a job with very many ranks: the loop that judges it also holds the lease
        if len(self.fresh) >= ranks:
            return True
        return bool(self.fresh) and now_s - self.looked_s >= every_s

    def take(self, block: WindowBlock, rows: Sequence[int], sent_s: float) -> list[int]:
        """Keep these rows of a block; which ranks could be read."""
        known = self.incarnations
        anew = [row for row in rows if known.get(block.ranks[row]) != block.incarnations[row]]
        try:
            read = self.board.take(block, None if len(rows) == len(block.ranks) else rows, anew)
        except OverflowError:
            for row in rows:
                self.sent_s[block.ranks[row]] = -inf
            raise
        for row in anew:
            if row in read:
                known[block.ranks[row]] = block.incarnations[row]
        ranks = [block.ranks[row] for row in read]
        for rank in ranks:
            self.sent_s[rank] = sent_s
        return ranks


def rows_from(node: str, block: WindowBlock, job: Job) -> list[int]:
    """The rows of a block that speak of the job as it is, and of workers of the node that sent it."""
    found, workers, count = [], job.workers, len(job.workers)
    for row, (rank, incarnation) in enumerate(zip(block.ranks, block.incarnations, strict=False)):
        if not 0 <= rank < count:
            continue
        worker, ref = workers[rank], workers[rank].ref
        if ref.incarnation == incarnation and ref.generation == block.generation and worker.node == node:
            found.append(row)
    return found
