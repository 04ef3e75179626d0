"""Windows of one host's workers as blocks of numbers: made by agents, read by weavers. Judges nobody.

Ranks of one host do the same work at the same time, so most of their numbers are equal or nearly so: a block
has the least number of each column, and for each rank how much more its own is. Of a window only what changes
is sent: its skeleton goes out when it changes, and now and then, because a message may have been lost and a
weaver may be new. A window that does not fit into a block (steps are missing, or special collectives in them)
is sent as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct

from torchloom.core.detect.window_numbers import (
    PER_STEP,
    NumberLayout,
    numbers_of,
    skeleton_of,
    whole,
)
from torchloom.model.windows import Collective, RankWindow, RefWindow, StepTimes, WindowBlock
from torchloom.model.worker import WorkerRef

SKELETON_EVERY = 4
"""Looks after which a skeleton is sent again."""
MOST_COLUMNS = 4096
"""A block with more is not read: nobody makes it."""
_NARROW = 1 << 32


class _Sent(Struct):
    """What was sent of one worker."""

    skeleton: RankWindow
    number: int
    collectives: tuple[Collective, ...]
    looks: int = 0


class Packing:
    """Turns the windows of one host's workers into blocks, and remembers what was sent."""

    def __init__(self) -> None:
        self._sent: dict[WorkerRef, _Sent] = {}

    def forget(self, ref: WorkerRef) -> None:
        self._sent.pop(ref, None)

    def pack(self, found: Sequence[RefWindow]) -> tuple[tuple[RefWindow, ...], tuple[WindowBlock, ...]]:
        """Those that do not fit into a block, and blocks of all others."""
        odd: list[RefWindow] = []
        alike: dict[tuple[object, ...], list[_Row]] = {}
        for one in found:
            row = self._row(one)
            if row is None:
                odd.append(one)
            else:
                alike.setdefault(row.like, []).append(row)
        return tuple(odd), tuple(map(_block, alike.values()))

    def _row(self, one: RefWindow) -> _Row | None:
        window, steps = one.window, one.window.steps
        places = tuple([place for place, _ in steps[0].made]) if steps else ()
        if len(window.process.state) != 1 or window.rank != one.ref.rank or not _regular(steps, places):
            return None
        before = self._sent.get(one.ref)
        # What it is in for longer than a look is a part of what stays.
        stays = before is not None and before.collectives == window.collectives
        skeleton = skeleton_of(window, window.collectives if stays else ())
        if before is not None and before.skeleton == skeleton:
            number, looks = before.number, before.looks + 1
        else:
            # Of an agent that was started anew, too, no two in a row have the same.
            number, looks = window.taken_ns >> 20 & 0xFFFFFFFF, 0
            number += before is not None and before.number == number
        numbers = numbers_of(window)
        for step in steps:
            numbers += (step.step_ns, step.data_wait_ns, step.wait_ns, *(made for _, made in step.made))
        try:
            struct.pack(f"<{len(numbers)}q", *numbers)
        except struct.error:
            return None
        self._sent[one.ref] = _Sent(skeleton, number, window.collectives, looks)
        like = (
            one.ref.job,
            one.ref.generation,
            NumberLayout(window).key,
            places,
            len(steps),
            steps[:1] and steps[0].step,
        )
        inside = None if stays else window.collectives
        return _Row(like, one, number, numbers, inside or None, None if looks % SKELETON_EVERY else skeleton)


class _Row:
    __slots__ = ("inside", "like", "number", "numbers", "one", "skeleton")

    def __init__(
        self,
        like: tuple[object, ...],
        one: RefWindow,
        number: int,
        numbers: list[int],
        inside: tuple[Collective, ...] | None,
        skeleton: RankWindow | None,
    ) -> None:
        self.like, self.one, self.number, self.numbers = like, one, number, numbers
        self.inside, self.skeleton = inside, skeleton


def _regular(steps: Sequence[StepTimes], places: tuple[int, ...]) -> bool:
    """Whether they follow each other, use the same groups, and nothing in them is special."""
    if not steps:
        return True
    if list(places) != sorted(set(places)):
        return False
    first = steps[0].step
    for number, one in enumerate(steps, first):
        if one.step != number or one.marked != () or one.sampled:
            return False
        if len(one.made) != len(places) or any(at != p for (at, _), p in zip(one.made, places, strict=True)):
            return False
    return True


def _block(rows: Sequence[_Row]) -> WindowBlock:
    refs, windows = [row.one.ref for row in rows], [row.one.window for row in rows]
    columns = list(zip(*(row.numbers for row in rows), strict=True))
    least = list(map(min, columns))
    spans = [max(column) - low for column, low in zip(columns, least, strict=True)]
    narrow = [at for at, span in enumerate(spans) if 0 < span < _NARROW]
    wide = [at for at, span in enumerate(spans) if span >= _NARROW]
    more = [number - least[at] for at in narrow for number in columns[at]]
    raw = [number for at in wide for number in columns[at]]
    steps = windows[0].steps
    return WindowBlock(
        job=refs[0].job,
        generation=refs[0].generation,
        ranks=tuple(ref.rank for ref in refs),
        incarnations=tuple(ref.incarnation for ref in refs),
        skeletons=tuple(row.number for row in rows),
        least=struct.pack(f"<{len(least)}q", *least),
        narrow=struct.pack(f"<{len(narrow)}H", *narrow),
        narrow_values=struct.pack(f"<{len(more)}I", *more),
        wide=struct.pack(f"<{len(wide)}H", *wide),
        wide_values=struct.pack(f"<{len(raw)}q", *raw),
        first_step=steps[0].step if steps else 0,
        steps=len(steps),
        places=tuple(place for place, _ in steps[0].made) if steps else (),
        inside={at: row.inside for at, row in enumerate(rows) if row.inside},
        hashes={at: window.hashes for at, window in enumerate(windows) if window.hashes},
        sent={at: row.skeleton for at, row in enumerate(rows) if row.skeleton is not None},
    )


# -- reading --------------------------------------------------------------------------------------
def check(block: WindowBlock) -> int:
    """The number of columns. Raises ValueError for bytes that are no block: an agent may send anything."""
    rows, columns = len(block.ranks), len(block.least) // 8
    narrow, wide = len(block.narrow) // 2, len(block.wide) // 2
    places = (*struct.unpack(f"<{narrow}H", block.narrow[: 2 * narrow]),
              *struct.unpack(f"<{wide}H", block.wide[: 2 * wide]))  # fmt: skip
    fits = (
        rows == len(block.incarnations) == len(block.skeletons) == len(set(block.ranks)) > 0
        and 0 < columns <= MOST_COLUMNS
        and len(block.least) == 8 * columns
        and len(block.narrow) == 2 * narrow
        and len(block.wide) == 2 * wide
        and len(block.narrow_values) == 4 * narrow * rows
        and len(block.wide_values) == 8 * wide * rows
        and max(places, default=0) < columns
        and 0 <= block.steps <= columns
        and 0 <= block.first_step < 1 << 62
        and block.places == tuple(sorted(set(block.places)))
        and min(block.places, default=0) >= 0
        and all(block.inside.values())
    )
    if not fits:
        raise ValueError(f"a block of {rows} windows does not fit together")
    return columns


def rows_of(block: WindowBlock) -> list[list[int]]:
    """All numbers, one row a rank. For a block that was checked."""
    least = list(struct.unpack(f"<{len(block.least) // 8}q", block.least))
    found = [list(least) for _ in block.ranks]
    for form, at, values in (("I", block.narrow, block.narrow_values), ("q", block.wide, block.wide_values)):
        places = struct.unpack(f"<{len(at) // 2}H", at)
        read = iter(struct.unpack(f"<{len(places) * len(found)}{form}", values))
        for place in places:
            for row in found:
                row[place] = least[place] + next(read) if form == "I" else next(read)
    return found


def widths(block: WindowBlock, columns: int) -> int:
    """How many of the columns are those of a window without its steps."""
    return columns - block.steps * (PER_STEP + len(block.places))


def steps_in(block: WindowBlock, numbers: Sequence[int]) -> tuple[StepTimes, ...]:
    """The steps at the end of a row."""
    each = PER_STEP + len(block.places)
    at = len(numbers) - block.steps * each
    found = []
    for step in range(block.first_step, block.first_step + block.steps):
        took, data, wait, *made = numbers[at : at + each]
        found.append(StepTimes(step, took, data, wait, tuple(zip(block.places, made, strict=True))))
        at += each
    return tuple(found)


class Skeletons:
    """The skeletons of some ranks, and windows made with them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, RankWindow, NumberLayout]] = {}

    def read(
        self, block: WindowBlock, rows: Collection[int] | None = None
    ) -> Iterator[tuple[int, RankWindow]]:
        """The windows of a block, or of some of its rows, each with its row. Those whose skeleton was lost
        are left out. Raises ValueError for a block that does not fit together."""
        width = widths(block, check(block))
        for row, numbers in enumerate(rows_of(block)):
            if rows is not None and row not in rows:
                continue
            rank = block.ranks[row]
            if (skeleton := block.sent.get(row)) is not None and skeleton.rank == rank:
                self._known[rank] = block.skeletons[row], skeleton, NumberLayout(skeleton)
            known = self._known.get(rank)
            if known is None or known[0] != block.skeletons[row] or known[2].width != width:
                continue
            steps, hashes = steps_in(block, numbers), block.hashes.get(row, ())
            yield row, whole(known[1], known[2], numbers[:width], steps, hashes, block.inside.get(row))


class Unpacking:
    """Reads what one agent or many send, window by window, for whoever does not keep a board."""

    def __init__(self) -> None:
        self._of: dict[str, Skeletons] = {}

    def windows(self, blocks: Iterable[WindowBlock]) -> Iterator[RefWindow]:
        for block in blocks:
            skeletons = self._of.setdefault(f"{block.job}/{block.generation}", Skeletons())
            for row, window in skeletons.read(block):
                ref = WorkerRef(block.job, block.ranks[row], block.generation, block.incarnations[row])
                yield RefWindow(ref, window)
