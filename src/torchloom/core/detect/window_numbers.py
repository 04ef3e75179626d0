"""A window as a skeleton and numbers: what stays from look to look, and what every look changes.

The names of its groups, its device, its role and the like stay the same for hours; times and counts are new
in every look. So a skeleton is sent now and then and the numbers always, and a reader puts both together
again (`whole`). Of thousands of windows most are never put together: rules ask columns of numbers
(wide_board.py).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, cast

from msgspec.structs import replace

from torchloom.model.windows import (
    Collective,
    DeviceFacts,
    GroupPosition,
    PairTimes,
    PartHash,
    ProcessFacts,
    QuorumFacts,
    RankWindow,
    StepTimes,
)

TAKEN, ACTIVE, DONE, VALUES_STEP, STATE, CPU, DELAY, THROTTLED = range(8)
"""The first numbers of every window."""
HEAD = 8
PER_GROUP, PER_STEP = 3, 3
ENTERED, FINISHED, WAITED = range(3)
"""The numbers of a group, after the first ones. Values, peaks, pairs, device and quorum follow them. Those of
a step are its length, its wait for data, its waits in collectives, and one for each group that it used."""
_DEVICE_STATES: tuple[Literal["unknown", "idle", "busy", "failed"], ...] = (
    "unknown",
    "idle",
    "busy",
    "failed",
)
_UNKNOWN = ord("?")
_PLAIN = ProcessFacts()
_double = struct.Struct("<d")
_word = struct.Struct("<q")


class NumberLayout:
    """Which numbers a window has. Windows of one layout have the same number at the same place."""

    __slots__ = ("groups", "key", "peaks", "tail", "values", "width")

    def __init__(self, window: RankWindow) -> None:
        self.groups = len(window.groups)
        self.values, self.peaks = tuple(window.values), tuple(window.peaks)
        rest = 3 * len(window.pairs), 4 * (window.accelerator is not None), 4 * (window.quorum is not None)
        self.tail = HEAD + PER_GROUP * self.groups
        """Where the values begin."""
        self.width = self.tail + len(self.values) + 2 * len(self.peaks) + sum(rest)
        self.key = self.groups, self.values, self.peaks, rest


def bits(value: float) -> int:
    """A float as a whole number, and back."""
    return cast(int, _word.unpack(_double.pack(value))[0])


def value(of_bits: int) -> float:
    return cast(float, _double.unpack(_word.pack(of_bits))[0])


def _doubles(of_bits: Sequence[int]) -> tuple[float, ...]:
    words, doubles = _forms(len(of_bits))
    return doubles.unpack(words.pack(*of_bits))


@lru_cache(maxsize=256)
def _forms(count: int) -> tuple[struct.Struct, struct.Struct]:
    return struct.Struct(f"<{count}q"), struct.Struct(f"<{count}d")


def numbers_of(window: RankWindow) -> list[int]:
    """The numbers of a window, without those of its steps."""
    facts = window.process
    found = [
        window.taken_ns,
        window.last_activity_ns,
        window.steps_done,
        window.values_step,
        ord(facts.state) if len(facts.state) == 1 else _UNKNOWN,
        facts.cpu_ns_per_step,
        facts.run_delay_ns_per_step,
        facts.throttled_ns_per_step,
    ]
    for group in window.groups:
        found += (group.entered, group.finished, group.wait_ns)
    found += map(bits, window.values.values())
    for step, highest in window.peaks.values():
        found += (step, bits(highest))
    for pair in window.pairs:
        found += (pair.send_ns, pair.recv_ns, pair.count)
    if (device := window.accelerator) is not None:
        found += (_DEVICE_STATES.index(device.state), device.quiet_ns, device.lead_ns, bits(device.idle))
    if (quorum := window.quorum) is not None:
        found += (quorum.number, quorum.replicas, quorum.steps, bits(quorum.wait_s))
    return found


def skeleton_of(window: RankWindow, collectives: tuple[Collective, ...]) -> RankWindow:
    """The same window with no numbers in it, and these collectives in progress."""
    device, quorum = window.accelerator, window.quorum
    return replace(
        window,
        taken_ns=0,
        last_activity_ns=0,
        steps_done=0,
        values_step=0,
        steps=(),
        hashes=(),
        collectives=collectives,
        groups=tuple(GroupPosition(g.name, g.size, g.rank, 0, 0, 0, g.timeout_s) for g in window.groups),
        values=dict.fromkeys(window.values, 0.0),
        peaks=dict.fromkeys(window.peaks, (0, 0.0)),
        pairs=tuple(PairTimes(p.group, p.peer) for p in window.pairs),
        process=replace(
            window.process, state="R", cpu_ns_per_step=0, run_delay_ns_per_step=0, throttled_ns_per_step=0
        ),
        accelerator=None if device is None else DeviceFacts("unknown", 0, device.error),
        quorum=None if quorum is None else QuorumFacts(0, 0, 0, 0.0),
    )


def whole(
    skeleton: RankWindow,
    layout: NumberLayout,
    numbers: Sequence[int],
    steps: Sequence[StepTimes],
    hashes: tuple[PartHash, ...],
    collectives: tuple[Collective, ...] | None = None,
) -> RankWindow:
    """The window that they were made of; without `collectives` those of the skeleton are in progress."""
    at = HEAD
    groups = []
    for group in skeleton.groups:
        entered, finished, waits = numbers[at : at + PER_GROUP]
        groups.append(
            GroupPosition(group.name, group.size, group.rank, entered, finished, waits, group.timeout_s)
        )
        at += PER_GROUP
    values = skeleton.values
    if layout.values:
        told = _doubles(numbers[at : at + len(layout.values)])
        values = dict(zip(layout.values, told, strict=True))
        at += len(layout.values)
    found = replace(
        skeleton,
        taken_ns=numbers[TAKEN],
        last_activity_ns=numbers[ACTIVE],
        steps_done=numbers[DONE],
        values_step=numbers[VALUES_STEP],
        steps=steps,
        groups=tuple(groups),
        values=values,
        process=_process(skeleton.process, numbers),
        hashes=hashes,
        collectives=skeleton.collectives if collectives is None else collectives,
    )
    return found if at == layout.width else _with_rest(found, layout, numbers[at:])


def sketch(skeleton: RankWindow, numbers: Sequence[int]) -> RankWindow:
    """The same without groups, values, steps and hashes that mean anything: for rules that ask what thousands
    of ranks do. By the first numbers; of a window without a device."""
    return replace(
        skeleton,
        taken_ns=numbers[TAKEN],
        last_activity_ns=numbers[ACTIVE],
        steps_done=numbers[DONE],
        values_step=numbers[VALUES_STEP],
        process=_process(skeleton.process, numbers),
    )


def _process(facts: ProcessFacts, numbers: Sequence[int]) -> ProcessFacts:
    state = chr(numbers[STATE] if 32 < numbers[STATE] < 127 else _UNKNOWN)
    if facts == _PLAIN:
        return ProcessFacts(state, numbers[CPU], numbers[DELAY], numbers[THROTTLED])
    return replace(
        facts,
        state=state,
        cpu_ns_per_step=numbers[CPU],
        run_delay_ns_per_step=numbers[DELAY],
        throttled_ns_per_step=numbers[THROTTLED],
    )


def _with_rest(window: RankWindow, layout: NumberLayout, numbers: Sequence[int]) -> RankWindow:
    """What only some windows have: peaks, pairs, a device, a quorum."""
    rest = iter(numbers)
    peaks = {name: (next(rest), value(next(rest))) for name in layout.peaks}
    pairs = tuple(PairTimes(p.group, p.peer, next(rest), next(rest), next(rest)) for p in window.pairs)
    device, quorum = window.accelerator, window.quorum
    if device is not None:
        state, quiet_ns, lead_ns, idle = (next(rest) for _ in range(4))
        known = _DEVICE_STATES[state] if 0 <= state < len(_DEVICE_STATES) else "unknown"
        device = DeviceFacts(known, quiet_ns, device.error, lead_ns, value(idle))
    if quorum is not None:
        number, replicas, steps, wait_s = (next(rest) for _ in range(4))
        quorum = QuorumFacts(number, replicas, steps, value(wait_s))
    return replace(window, peaks=peaks, pairs=pairs, accelerator=device, quorum=quorum)
