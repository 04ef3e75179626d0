"""When a change of settings takes effect on all replicas of a torchft job: the rules of our lighthouse.

No replica makes a step before the lighthouse has formed its quorum, so the lighthouse can choose the step. It
does so while it forms a quorum, if every rank of every member has agreed to the change and is connected.
A rank that has agreed asks for the decision after each quorum and before it commits, so no rank commits the
chosen step without the change. What holds at a step follows from the list of changes alone; a replica that
heals gets that list before its first commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from torchloom.model.quorum import ReplicaChange, ReplicaOutcome

REMEMBERED = 64
"""Changes that are kept for replicas that join; a new generation gets older ones from the control service."""

Rank = tuple[str, int]
"""Door and rank."""


class RankReport(Struct, frozen=True):
    """What a rank did with a change."""

    changed: tuple[tuple[str, Any, Any], ...] = ()
    trouble: str = ""


class ChangeBoard(Struct):
    """All changes of one torchft job, oldest first."""

    changes: list[ReplicaChange] = field(default_factory=list)
    agreed: dict[int, set[Rank]] = field(default_factory=dict)
    """By version. What a rank agreed to counts while it is connected."""
    reports: dict[int, dict[Rank, RankReport]] = field(default_factory=dict)


def find(board: ChangeBoard, version: int) -> ReplicaChange | None:
    return next((change for change in board.changes if change.version == version), None)


def propose(
    board: ChangeBoard, version: int, values: Mapping[str, Any], at_step: int, kind: str = "set"
) -> bool:
    """Returns whether it is new."""
    if find(board, version) is not None:
        return False
    board.changes.append(ReplicaChange(version, dict(values), at_step, kind=kind))
    board.changes.sort(key=lambda change: change.version)
    surplus = len(board.changes) - REMEMBERED
    for old in [change for change in board.changes if not change.open][: max(0, surplus)]:
        board.changes.remove(old)
        board.agreed.pop(old.version, None)
        board.reports.pop(old.version, None)
    return True


def withdraw(board: ChangeBoard, version: int, why: str) -> bool:
    """Returns whether it was still possible."""
    change = find(board, version)
    if change is None or not change.open:
        return False
    change.refused = why
    return True


def answer(board: ChangeBoard, rank: Rank, version: int, problem: str) -> bool:
    """A rank can apply it, or says why it cannot. Returns whether that ended the change."""
    change = find(board, version)
    if change is None or not change.open:
        return False
    if problem:
        change.refused = f"rank {rank[1]} of {job_of(rank[0])}: {problem}"
        return True
    board.agreed.setdefault(version, set()).add(rank)
    return False


def disconnected(board: ChangeBoard, rank: Rank) -> None:
    for agreed in board.agreed.values():
        agreed.discard(rank)


def decide(board: ChangeBoard, step: int, members: Mapping[str, int]) -> list[ReplicaChange]:
    """A quorum for `step` is being formed, of these doors with so many ranks: what it decides.

    Changes are decided in their order: the first that somebody has not agreed to holds back the others.
    """
    everybody = {(door, rank) for door, ranks in members.items() for rank in range(ranks)}
    decided = []
    for change in board.changes:
        if not change.open:
            continue
        if not everybody <= board.agreed.get(change.version, set()):
            break
        change.step = max(step, change.at_step)
        change.awaited = dict(members)
        decided.append(change)
    return decided


def report(board: ChangeBoard, rank: Rank, version: int, done: RankReport) -> bool:
    """A rank has applied it, or has failed and kept the old values. Returns whether that ended the change:
    if all have failed, nothing has changed anywhere."""
    change = find(board, version)
    reports = board.reports.setdefault(version, {})
    reports.setdefault(rank, done)
    if change is None or change.refused or not all(one.trouble for one in reports.values()):
        return False
    if not {(door, r) for door, ranks in change.awaited.items() for r in range(ranks)} <= reports.keys():
        return False
    change.step, change.refused = None, "the script failed at it on all replicas, and the old values hold"
    return True


def outcome(board: ChangeBoard, version: int, doors: Iterable[str]) -> ReplicaOutcome | None:
    """How it ended; None while it has not. A replica whose door is closed is not waited for: its next
    generation begins with the change."""
    change = find(board, version)
    if change is None:
        return ReplicaOutcome(reason="the lighthouse does not know it: it was started anew meanwhile")
    if change.refused:
        return ReplicaOutcome(reason=change.refused, trouble=_trouble(board, version))
    if change.step is None:
        return None
    reports, present = board.reports.get(version, {}), set(doors)
    awaited = {(d, r) for d, ranks in change.awaited.items() if d in present for r in range(ranks)}
    if not awaited <= reports.keys():
        return None
    first = min(reports, default=None)
    return ReplicaOutcome(
        step=change.step,
        reason=f"applied with the commit of step {change.step} on {len(change.awaited)} replicas",
        changed=reports[first].changed if first is not None else (),
        trouble=_trouble(board, version),
    )


def _trouble(board: ChangeBoard, version: int) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for (door, rank), done in sorted(board.reports.get(version, {}).items()):
        if done.trouble:
            found.setdefault(job_of(door), {})[rank] = done.trouble
    return found


def job_of(door: str) -> str:
    """`train-r0.g3` is a door of the job `train-r0`."""
    return door.rpartition(".g")[0] or door
