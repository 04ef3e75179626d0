"""What the black box records about the device that runs a rank's collectives. Makes no judgement.

A collective is enqueued long before the device runs it, so the position of a host that is 20 collectives
ahead is its oldest unfinished one. Steps are the device's too: the host's steps show only how fast it
launches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from torchloom.agent.observe.boxes import ReadableBox, is_under_way
from torchloom.model.windows import DeviceFacts
from torchloom.wire import blackbox
from torchloom.wire.blackbox import DeviceState, DeviceStep, Progress, Source, Step

_OLDEST = 64
"""Records from the oldest unfinished one on that are looked at."""
_OF_A_GROUP = 2
"""Most unfinished collectives per group in a window: the rank is at the first, the next ones add nothing."""
_STEPS_A_LOOK = 32
_STALE_NS = 2 * 10**9
"""The recorder looks at an idle device twice a second, and more often at a busy one."""
_STATES: dict[int, str] = {DeviceState.IDLE: "idle", DeviceState.BUSY: "busy", DeviceState.FAILED: "failed"}


def is_used(box: ReadableBox) -> bool:
    """Whether any of its collectives was given to a device that can be asked."""
    return box.progress(Progress.DEVICE_LOOKED_NS) != 0


Looks = deque[tuple[int, int]]
"""Of the newest windows: looks at the device until then, and those that found it idle."""


def facts(box: ReadableBox, lead_ns: int, looks: Looks, now_ns: int) -> DeviceFacts | None:
    if not is_used(box):
        return None
    looks.append((box.progress(Progress.DEVICE_LOOKS), box.progress(Progress.DEVICE_IDLE_LOOKS)))
    (before, idle_before), (now, idle) = looks[0], looks[-1]
    since_ns = box.progress(Progress.DEVICE_STATE_SINCE_NS)
    error = box.view.read_blob(blackbox.DEVICE_ERROR) or b""
    state = _STATES.get(box.progress(Progress.DEVICE_STATE), "unknown")
    if state != "failed" and now_ns - box.progress(Progress.DEVICE_LOOKED_NS) > _STALE_NS:
        state = "unknown"  # its process is stopped, or has become another program
    return DeviceFacts(
        state,  # type: ignore[arg-type]
        max(0, now_ns - since_ns) if since_ns else 0,
        error.decode("utf-8", "replace"),
        lead_ns,
        (idle - idle_before) / max(1, now - before),
    )


def under_way(box: ReadableBox) -> list[blackbox.CollectiveRecord]:
    """The oldest that the device has not finished, of each group and each way to a peer."""
    oldest = box.progress(Progress.DEVICE_OLDEST)
    if not oldest:
        return []
    newest = box.progress(Progress.COLLECTIVES_ENTERED)
    if oldest + blackbox.COLLECTIVE_SLOTS <= newest:  # the host is so far ahead that the ring has it no more
        return [c for c in box.view.device_heads() if c.seq >= oldest and is_under_way(c)]
    shown: dict[tuple[int, int, int | None], int] = {}
    found = []
    for seq in range(oldest, min(newest, oldest + _OLDEST - 1) + 1):
        record = box.view.read_collective(seq)
        if record is None or record.source != Source.DEVICE_EVENT or not is_under_way(record):
            continue
        paired = "send" in blackbox.OPS[record.op] or "recv" in blackbox.OPS[record.op]
        lane = (record.group, record.op if paired else -1, record.peer if paired else None)
        if lane not in shown and not record.head_ns:
            # The recorder is just noting that those before it have ended: it was not the oldest until then.
            record = record._replace(head_ns=box.progress(Progress.DEVICE_LOOKED_NS))
        shown[lane] = shown.get(lane, 0) + 1
        if shown[lane] <= _OF_A_GROUP:
            found.append(record)
    return found


def steps(box: ReadableBox, seen: int) -> Iterator[tuple[DeviceStep, Step | None]]:
    """Steps after `seen` that are over on the device and were timed there, with the host's record of each if
    there still is one."""
    newest = box.view.newest_device_step()
    found = 0
    for seq in range(max(seen + 1, newest - blackbox.DEVICE_STEP_SLOTS + 1), newest + 1):
        timed = box.view.read_device_step(seq)
        if timed is None:
            continue
        yield timed, box.view.read_step(seq)
        found += 1
        if found == _STEPS_A_LOOK:
            return


def records(
    box: ReadableBox, at: int, begin_ns: int, ended_ns: int
) -> tuple[list[blackbox.CollectiveRecord], int]:
    """Those that the host entered in this time, looked for from number `at` on, and where the next begin."""
    entered = box.progress(Progress.COLLECTIVES_ENTERED)
    at = max(at, entered - blackbox.COLLECTIVE_SLOTS + 1, 1)
    found = []
    while at <= entered:
        one = box.view.read_collective(at)
        if one is not None and one.entered_ns > ended_ns:
            break
        if one is not None and one.entered_ns > begin_ns:
            found.append(one)
        at += 1
    return found, at


def leads(records: Iterable[blackbox.CollectiveRecord]) -> list[int]:
    """How long each was enqueued before the device started it; the last ones of a step matter most."""
    return [r.arrived_ns - r.entered_ns for r in records if r.arrived_ns][-1:]
