"""Which events are needless, from the places of the snapshots alone; and whose word for it counts."""

from __future__ import annotations

import pytest

from torchloom.core.history.trimming import next_step
from torchloom.core.reducer import apply
from torchloom.model.events import Envelope, LeaseTaken, SnapshotVerified
from torchloom.model.fleet import Fleet

KEEP = 100


@pytest.mark.parametrize(
    ("seq", "trimmed", "anchors", "first", "wanted"),
    [
        (99, 0, [], 1, None),
        (100, 0, [], 1, ("anchor", 0)),
        (150, 0, [100], 1, None),
        (200, 0, [100], 1, ("anchor", 100)),
        (201, 100, [100, 200], 1, ("drop", 100)),
        (201, 100, [100, 200], 101, None),
        (201, 100, [200], 1, None),  # the one before was damaged: nothing is dropped
        (201, 100, [], 1, ("anchor", 0)),
        (300, 100, [50, 100, 200], 101, ("anchor", 200)),  # 50 is older than the first event kept
        (201, 100, [100, 900], 1, ("anchor", 100)),  # 900 is of another stream
    ],
)
def test_what_is_done_next(
    seq: int, trimmed: int, anchors: list[int], first: int, wanted: tuple[str, int] | None
) -> None:
    step = next_step(Fleet(seq=seq, trimmed=trimmed), anchors, first, KEEP)
    assert (None if step is None else (step.what, step.upto)) == wanted
    assert step is None or step.reason


def said(fleet: Fleet, source: str, body: LeaseTaken | SnapshotVerified) -> int:
    seq = fleet.seq + 1
    apply(fleet, Envelope(f"said-{seq}", source, body), seq, now_ns=seq)
    return fleet.trimmed


def verified(epoch: int, base: int) -> SnapshotVerified:
    return SnapshotVerified(epoch=epoch, base=base, seq=50, digest="")


def test_only_the_leader_is_believed_and_nothing_is_taken_back() -> None:
    fleet = Fleet(seq=100)
    said(fleet, "old", LeaseTaken(weaver="old", epoch=3))
    assert said(fleet, "old", verified(3, base=2)) == 2
    said(fleet, "new", LeaseTaken(weaver="new", epoch=4))
    assert said(fleet, "old", verified(3, base=4)) == 2, "a weaver of an older epoch"
    assert said(fleet, "old", verified(4, base=4)) == 2
    assert said(fleet, "new", verified(3, base=4)) == 2
    assert said(fleet, "new", verified(4, base=4)) == 4
    assert said(fleet, "new", verified(4, base=3)) == 4
    assert said(fleet, "new", verified(4, base=50)) == 4, "a snapshot does not verify itself"
