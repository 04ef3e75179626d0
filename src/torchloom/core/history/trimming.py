"""When the stream's history is cut off, and where: a pure choice with a reason. Deletes nothing.

Every `keep` events the weaver stores a snapshot that stays, an *anchor*, and replays from the anchor before
it. If the replay gives the same fleet, that older anchor was stored whole and read right, and stands for all
events up to it. So there are always two anchors, events are dropped only up to the older one, and between
`keep` and twice as many remain. While the stream holds more than KEEP_BYTES, anchors
are stored more often.

Only the weaver that leads is believed (core/nodes/speaking.py), and only in its own epoch. What was found
needless once stays so: a deposed weaver that wakes up and drops it late does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torchloom.model.events import SnapshotVerified
from torchloom.model.fleet import Fleet

KEEP_HISTORY = 20_000
"""Events that are kept at least."""
LEAST_KEPT = 100
KEEP_BYTES = 128 << 20
"""With more bytes than this in the stream, a fraction of the events is enough for the next anchor."""
FRACTION = 100


@dataclass(frozen=True, slots=True)
class Next:
    """What the weaver that leads does about its history now."""

    what: Literal["anchor", "drop"]
    upto: int
    """anchor: the older anchor to verify with it, 0 for none. drop: the last event that is dropped."""
    reason: str


def next_step(
    fleet: Fleet, anchors: Sequence[int], first_seq: int, keep: int, bytes_kept: int = 0
) -> Next | None:
    """`anchors` are the places of the stored anchors that can be read; `first_seq` the oldest event kept, and
    `bytes_kept` the size of all events that are kept."""
    whole = sorted(seq for seq in anchors if first_seq - 1 <= seq <= fleet.seq)
    if first_seq <= fleet.trimmed and len([seq for seq in whole if seq >= fleet.trimmed]) >= 2:
        return Next("drop", fleet.trimmed, "a verified snapshot stands for these events, and another follows")
    newest = whole[-1] if whole else 0
    since = max(newest, first_seq - 1)
    if fleet.seq - since >= keep:
        return Next("anchor", newest, f"{fleet.seq - since} events have been stored since the last one")
    if bytes_kept > KEEP_BYTES and fleet.seq - since >= max(1, keep // FRACTION):
        return Next("anchor", newest, f"the stream holds {bytes_kept >> 20} MiB")
    return None


def snapshot_verified(fleet: Fleet, event: SnapshotVerified) -> None:
    """From the stream: the fleet's leader has verified a snapshot."""
    if event.epoch == fleet.epoch and fleet.trimmed < event.base < event.seq <= fleet.seq:
        fleet.trimmed = event.base
