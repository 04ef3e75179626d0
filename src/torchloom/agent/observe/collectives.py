"""Records of the collectives ring for detectors, for exit reports, and of ranks that wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchloom.agent.observe import words
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.core.detect.encoding import PEERS_AFTER_S
from torchloom.model.windows import Collective, Completion, FailedCollective
from torchloom.wire import blackbox
from torchloom.wire.blackbox import DTYPES, REDUCTIONS, Progress, Source

_COMPLETION: dict[int, Completion] = {
    Source.NONE: "none",
    Source.CALLBACK: "callback",
    Source.HOST_WAIT: "host-wait",
    Source.DEVICE_EVENT: "device-event",
}


_OLDEST, _NEWEST = 4, 8
"""Records of an exit report."""
_GROUPS_COUNTED = 8
"""Most groups of a rank whose collectives are counted per step: each step is sent several times."""
_LEFT_SHOWN = 16
"""Newest records among which those are that a waiting rank has left."""


def record(c: blackbox.CollectiveRecord, group: str) -> Collective:
    """A record of the ring in the detectors' form."""
    return Collective(
        op=words.op_name(c.op),
        group=group,
        group_seq=c.group_seq,
        bytes=c.bytes,
        dtype=DTYPES.get(c.dtype, "unknown"),
        entered_ns=c.entered_ns,
        finished_ns=c.finished_ns,
        completion=_COMPLETION.get(c.source, "none"),
        waited=not c.flags & blackbox.FLAG_ASYNC,
        peer=c.peer,
        exact=not c.flags & blackbox.FLAG_BACKEND_SEQ,
        failed=bool(c.flags & blackbox.FLAG_FAILED),
        reduction=REDUCTIONS[c.reduction] if c.reduction < len(REDUCTIONS) else "",
        arrived_ns=c.arrived_ns,
        approaching=c.approaching,
        head_ns=c.head_ns,
    )


def last_collectives(box: ReadableBox) -> tuple[Collective, ...]:
    """The oldest unfinished collectives and the newest ones: a disagreement is about one of these. Once a
    peer is gone, a device may end what it stood in, and the host launches some more before it notices."""
    names = {key: words.group_name(group.name) for key, group in box.view.groups().items()}
    ring = list(box.view.collectives(64))
    not_over = [c for c in ring if not c.finished_ns or c.flags & blackbox.FLAG_FAILED][:_OLDEST]
    chosen = {c.seq: c for c in (*not_over, *ring[-_NEWEST:])}
    return tuple(record(chosen[seq], names.get(chosen[seq].group, "")) for seq in sorted(chosen))


def newest_failed(
    box: ReadableBox, names: Mapping[int, str], before: FailedCollective | None, steps: int
) -> FailedCollective | None:
    """The newest collective that ended with an error; None as long as there was none."""
    count = box.progress(Progress.COLLECTIVES_FAILED)
    if not count or (before is not None and before.count == count):
        return before
    found = box.view.read_collective(box.progress(Progress.COLLECTIVE_FAILED_SEQ))
    if found is None:  # overwritten, or just being written
        return FailedCollective(count, "a collective", box.progress(Progress.LAST_ACTIVITY_NS), steps)
    number = f" #{found.group_seq}" if found.group_seq else ""
    what = f"{words.op_name(found.op)}{number} of group {names.get(found.group, '')}"
    return FailedCollective(count, what, found.finished_ns or found.entered_ns, steps)


def left(
    box: ReadableBox, under_way: Sequence[blackbox.CollectiveRecord], now_ns: int
) -> list[blackbox.CollectiveRecord]:
    """Of a rank that waits in a collective for a while, those on the host that it has left: in one of these
    others may still be, and it shows which of them departed from the order."""
    if not under_way or now_ns - box.progress(Progress.LAST_ACTIVITY_NS) < PEERS_AFTER_S * 1e9:
        return []
    newest = box.view.collectives(_LEFT_SHOWN)
    return [c for c in newest if c.finished_ns and c.source != Source.DEVICE_EVENT]


def counted(groups: Mapping[int, blackbox.Group]) -> dict[int, int]:
    """Places in the table of the groups that are counted step by step: the busiest so far. By powers of two,
    then by age, so that the choice hardly ever changes; what each rank of a group counts can be compared only
    where all of them do."""
    order = sorted(enumerate(groups.values()), key=lambda one: -one[1].entered.bit_length())
    return {group.key: place for place, group in order[:_GROUPS_COUNTED]}
