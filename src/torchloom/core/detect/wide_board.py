"""A board of arrays, for jobs of hundreds of ranks and more: blocks of numbers go into it as they come.

No window is made until a rule asks for it, and of a large job most are never asked for: 16,384 windows with
their steps are a million records, and making, joining and walking over them took most of a look. Everything
here gives what the plain board gives; a test compares the two. Needs NumPy (wide.py). Over 400 lines, because
it answers every question of the plain board from the same arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from msgspec.structs import force_setattr, replace

from torchloom.core.detect.board import (
    ABSENT,
    APPROACHING,
    BROKEN,
    BUSY,
    HASHED,
    THROTTLED,
    GroupRows,
    WindowBoard,
    inside_marks,
    marks_of,
    state_marks,
)
from torchloom.core.detect.kept_steps import STEPS_KEPT, joined_hashes
from torchloom.core.detect.robust import median
from torchloom.core.detect.wide import middles, numpy, worth_it
from torchloom.core.detect.wide_steps import RingSteps, WideRing
from torchloom.core.detect.window import RankWindow
from torchloom.core.detect.window_blocks import check, rows_of, steps_in, widths
from torchloom.core.detect.window_numbers import (
    ACTIVE,
    CPU,
    DELAY,
    DONE,
    ENTERED,
    HEAD,
    PER_GROUP,
    PER_STEP,
    STATE,
    TAKEN,
    VALUES_STEP,
    WAITED,
    NumberLayout,
    numbers_of,
    skeleton_of,
    sketch,
    whole,
)
from torchloom.core.detect.window_numbers import THROTTLED as THROTTLED_NS
from torchloom.model.windows import Collective, PartHash, StepTimes, WindowBlock

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")
_STALE = RankWindow(rank=-2, node="", taken_ns=0)
"""In place of a window that was not made since its newest numbers came."""
_KINDS = 8
"""Most ranks of a job are of this many kinds: more are found one by one."""
_STATES = 128
_NUMBERS, _WIDTHS = 1 << 40, 1 << 20
"""More than any skeleton's number, and than any layout is wide."""


class WideBoard(WindowBoard):
    _ring: WideRing

    @staticmethod
    def _new_ring(ranks: int) -> WideRing:
        return WideRing(ranks)

    def _start(self) -> None:
        super()._start()
        np = numpy()
        count = len(self._rows)
        self._shells: list[RankWindow] = [ABSENT] * count
        """The skeleton of each row."""
        self._layouts: list[NumberLayout] = []
        self._numbered: dict[tuple[object, ...], int] = {}
        self._layout = np.full(count, -1, np.int64)
        self._numbers = np.zeros((count, HEAD), np.int64)
        self._started = np.zeros(count, np.int64)
        self._plain = np.zeros(count, np.int64)
        """Marks that a row has whatever its numbers are."""
        self._inside: dict[int, tuple[Collective, ...]] = {}
        """Collectives in progress that are not those of the skeleton."""
        self._hashes: list[tuple[PartHash, ...]] = [()] * count
        self._hash_steps, self._hash_tables = array("q", [-1]) * count, array("q", [-1]) * count
        """Step and table of the newest of them."""
        self._sent: list[RankWindow] = [ABSENT] * count
        self._sent_numbers = [0] * count
        """The skeleton that each row's agent sent last, and its number."""
        self._known = array("q", bytes(8 * count))
        """The number of the skeleton of each row with the width of its layout (`_form`); 0: none was sent."""
        self._pending: dict[tuple[int, int, int, int, int, int, tuple[int, ...]], list[WindowBlock]] = {}
        """Blocks that were not read yet, by their shape: all of one shape are read at once …"""
        self._waiting: set[int] = set()
        """… and the ranks in them."""
        self._indexed: object = None
        self._used: object = None
        self._odd: set[int] = set()
        """Rows whose steps do not fit into the ring."""
        self._of_state = np.array([state_marks(chr(n)) for n in range(_STATES)], np.int64)

    # -- as a sequence ------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[RankWindow]:
        return map(self._window, range(len(self._rows)))

    @overload
    def __getitem__(self, place: int) -> RankWindow: ...
    @overload
    def __getitem__(self, place: slice) -> list[RankWindow]: ...
    def __getitem__(self, place: int | slice) -> RankWindow | list[RankWindow]:
        if isinstance(place, slice):
            return [self._window(row) for row in range(*place.indices(len(self._rows)))]
        return self._window(place if place >= 0 else place + len(self._rows))

    def _window(self, row: int) -> RankWindow:
        found = self._rows[row]
        if found is _STALE:
            found = self._rows[row] = self._made(row, RingSteps(self._ring, row, *self._span_of(row)))
        return found

    def _span_of(self, row: int) -> tuple[int, int]:
        return self.first[row], self.last[row]

    def _made(self, row: int, steps: Sequence[Any]) -> RankWindow:
        layout = self._layouts[self._layout[row]]
        numbers = self._now()[row, : layout.width].tolist()
        return whole(self._shells[row], layout, numbers, steps, self._hashes[row], self._inside.get(row))

    # -- taking in ----------------------------------------------------------------------------------
    def _put(self, window: RankWindow, anew: bool) -> None:
        self._now()
        row = window.rank
        if self.has(row):
            before = self._window(row)
            steps: Sequence[StepTimes] = before.steps
            if isinstance(steps, RingSteps):
                force_setattr(before, "steps", list(steps))  # which grows, see board.py
        super()._put(window, anew)
        kept = self._rows[row].steps
        if row in self.gaps or any(one.marked != () or one.sampled for one in kept):
            self._odd.add(row)
        else:
            self._odd.discard(row)

    def _note(self, row: int, before: RankWindow, window: RankWindow) -> None:
        if window is ABSENT:
            self._shells[row], self._layout[row], self._plain[row] = ABSENT, -1, 0
            self._known[row] = 0
            self._inside.pop(row, None)
            self._keep_hashes(row, ())
            self._groups = None
            return
        skeleton = skeleton_of(window, ())
        numbers = numbers_of(window)
        numpy().array(numbers, numpy().int64)  # raises OverflowError before anything is changed
        self._outline(row, skeleton, 0)
        self._numbers[row, : len(numbers)] = numbers
        if window.collectives:
            self._inside[row] = window.collectives
        else:
            self._inside.pop(row, None)
        self._keep_hashes(row, window.hashes)

    def _outline(self, row: int, skeleton: RankWindow, number: int) -> None:
        """A new skeleton of a row; its number if it was sent."""
        known = self._shells[row]
        if known is not ABSENT and known == replace(skeleton, collectives=known.collectives):
            # It is in another collective, and all else is as before.
            self._shells[row] = skeleton
            self._known[row] = _form(number, self._layouts[self._layout[row]].width)
            self._plain[row] = int(self._plain[row]) & ~(BUSY | APPROACHING) | inside_marks(skeleton)
            return
        layout = NumberLayout(skeleton)
        number_of_layout = self._numbered.setdefault(layout.key, len(self._layouts))
        if number_of_layout == len(self._layouts):
            self._layouts.append(layout)
        self._layout[row] = number_of_layout
        self._shells[row] = skeleton
        self._known[row] = _form(number, layout.width)
        self._started[row] = skeleton.started_ns
        self._plain[row] = marks_of(skeleton)
        if layout.width > self._numbers.shape[1]:
            more = numpy().zeros((len(self._rows), layout.width - self._numbers.shape[1]), numpy().int64)
            self._numbers = numpy().hstack((self._numbers, more))
        if known is ABSENT or known.role != skeleton.role or known.groups != skeleton.groups:
            self._groups = None

    def _keep_hashes(self, row: int, hashes: tuple[PartHash, ...]) -> None:
        self._hashes[row] = hashes
        newest = hashes[-1] if hashes else None
        self._hash_steps[row] = newest.step if newest is not None else -1
        self._hash_tables[row] = newest.table if newest is not None else -1

    def take(
        self, block: WindowBlock, rows: Collection[int] | None = None, anew: Collection[int] = ()
    ) -> list[int]:
        width = widths(block, check(block))
        ranks = block.ranks
        if max(ranks) >= len(self._rows) or min(ranks) < 0:
            raise ValueError(f"a block of ranks {ranks[:8]} in a job of {len(self._rows)}")
        for place, skeleton in block.sent.items():
            if 0 <= place < len(ranks) and skeleton.rank == ranks[place] and (rows is None or place in rows):
                self._hear(skeleton, block.skeletons[place])
        if rows is None and not anew and self._is_plain(block, width):
            self._take(block, width)
            return list(range(len(ranks)))
        return self._take_each(block, width, range(len(ranks)) if rows is None else rows, anew)

    def _hear(self, skeleton: RankWindow, number: int) -> None:
        """A skeleton that was sent, again or anew."""
        rank = skeleton.rank
        self._sent[rank], self._sent_numbers[rank] = skeleton, number
        if self.has(rank) and (number >= _NUMBERS or self._known[rank] // _WIDTHS != number):
            if rank in self._waiting:
                self._now()
            self._outline(rank, skeleton, number)

    def _is_plain(self, block: WindowBlock, width: int) -> bool:
        """Whether the numbers may go straight into the columns: the windows are of this shape, and the new
        steps follow those that are known, the same ones for all rows."""
        where = _places(block.ranks)
        if list(_at(self._known, where)) != [_form(number, width) or -1 for number in block.skeletons]:
            return False
        last = self.last[block.ranks[0]]
        if block.steps and (
            block.first_step > last + 1
            or _at(self.last, where).count(last) < len(block.ranks)
            or max(_at(self.first, where)) > block.first_step
        ):
            return False
        return not self._odd or self._odd.isdisjoint(block.ranks)

    def _take(self, block: WindowBlock, width: int) -> None:
        """The numbers are read later, those of all hosts at once."""
        ranks, end = block.ranks, block.first_step + block.steps - 1
        where, last = _places(ranks), self.last[ranks[0]]
        known = block.steps
        if block.steps and end > last:
            known = max(0, last + 1 - block.first_step, block.steps - STEPS_KEPT)
            least = end - STEPS_KEPT + 1
            _fill(self.last, where, end)
            first = _at(self.first, where)
            if max(first) <= least:
                _fill(self.first, where, least)
            elif min(first) < least:
                for rank in ranks:
                    self.first[rank] = max(self.first[rank], least)
        shape = len(block.least), len(ranks), width, block.first_step, block.steps, known, block.places
        if not self._waiting.isdisjoint(ranks):
            self._now()
        self._waiting.update(ranks)
        self._pending.setdefault(shape, []).append(block)
        if isinstance(where, slice):
            self._rows[where] = [_STALE] * len(ranks)
        else:
            for rank in ranks:
                self._rows[rank] = _STALE
        if block.inside or (self._inside and not self._inside.keys().isdisjoint(ranks)):
            for place, rank in enumerate(ranks):
                if (inside := block.inside.get(place)) is not None:
                    self._inside[rank] = inside
                else:
                    self._inside.pop(rank, None)
        for place, hashes in block.hashes.items():
            if 0 <= place < len(ranks) and hashes:
                before = self._hashes[ranks[place]]
                if before[-len(hashes) :] != hashes:  # most are sent more than once
                    self._keep_hashes(ranks[place], joined_hashes(before, hashes) if before else hashes)
        if self.notes:
            self.notes = {}

    def _take_each(
        self, block: WindowBlock, width: int, places: Collection[int], anew: Collection[int]
    ) -> list[int]:
        """One window after the other, as the plain board does."""
        found = []
        numbers = rows_of(block)
        for place in sorted(places):
            rank, number, mine = block.ranks[place], block.skeletons[place], numbers[place]
            skeleton = self._sent[rank]
            if skeleton is ABSENT or self._sent_numbers[rank] != number:
                continue
            layout = NumberLayout(skeleton)
            if layout.width != width:
                continue
            steps, hashes = steps_in(block, mine), block.hashes.get(place, ())
            window = whole(skeleton, layout, mine[:width], steps, hashes, block.inside.get(place))
            self.put(window, place in anew)
            # The same window, with the skeleton that was sent: what comes next fits to it.
            self._outline(rank, skeleton, number)
            if place not in block.inside:
                self._inside.pop(rank, None)
            if rank not in self._odd:
                self._rows[rank] = _STALE  # all of it is in the arrays: a record of each step is not kept
            found.append(place)
        return found

    def _now(self) -> NDArray[Any]:
        """The numbers of all rows, with those of the newest blocks."""
        if self._pending:
            pending, self._pending, self._waiting = self._pending, {}, set()
            for (_, _, width, first_step, _, known, places), blocks in pending.items():
                rows, numbers = _read(blocks)
                self._numbers[rows, :width] = numbers[:, :width]
                each = PER_STEP + len(places)
                new = numbers[:, width + known * each :]
                if new.shape[1]:
                    steps = new.reshape(len(rows), -1, each)
                    self._ring.put_many(rows, first_step + known, steps, places)
        return self._numbers

    # -- asking ---------------------------------------------------------------------------------------
    def marked(self, mark: int) -> set[int]:
        key = f"mark {mark}"
        if key not in self.notes:
            self.notes[key] = set(numpy().nonzero(self._all_marks() & mark)[0].tolist())
        return cast("set[int]", self.notes[key])

    def _all_marks(self) -> NDArray[Any]:
        """For each row its marks."""
        found: NDArray[Any] | None = self.notes.get("marks")
        if found is None:
            np = numpy()
            states = self._now()[:, STATE]
            found = self._plain | self._of_state[np.clip(states, 0, _STATES - 1)]
            found[(self._now()[:, THROTTLED_NS] != 0) & (self._layout >= 0)] |= THROTTLED
            found[self._layout < 0] = 0
            for number, layout in enumerate(self._layouts):
                if layout.values:
                    rows = self._rows_of(number)
                    values = self._now()[rows, layout.tail : layout.tail + len(layout.values)]
                    with np.errstate(all="ignore"):
                        broken = ~np.isfinite(np.ascontiguousarray(values).view(np.float64).sum(axis=1))
                    if broken.any():
                        found[np.arange(len(found))[rows][broken]] |= BROKEN
            for row, inside in self._inside.items():
                found[row] |= BUSY | APPROACHING if inside[0].approaching else BUSY
            found[_column(self._hash_steps) >= 0] |= HASHED
            self.notes["marks"] = found
        return found

    def _rows_of(self, layout: int) -> Any:
        """The rows of one layout."""
        if len(self._layouts) == 1 and bool((self._layout == 0).all()):
            return slice(None)
        return numpy().nonzero(self._layout == layout)[0]

    def with_mark(self, mark: int) -> list[RankWindow]:
        return [self._window(row) for row in sorted(self.marked(mark))]

    def outlines(self) -> Sequence[RankWindow]:
        return self._shells

    def outline(self, row: int) -> RankWindow:
        shell = self._shells[row]
        return shell if shell.accelerator is None else self._window(row)

    def by_rank(self) -> Mapping[int, RankWindow]:
        return _ByRank(self)

    def sketches(self, ranks: Iterable[int]) -> list[RankWindow]:
        rows, found = list(ranks), []
        for row, numbers in zip(rows, self._now()[rows, :HEAD].tolist(), strict=True):
            shell = self._shells[row]
            if shell is ABSENT:
                raise KeyError(row)
            kept = self._rows[row] is not _STALE or shell.accelerator is not None
            found.append(self._window(row) if kept else sketch(shell, numbers))
        return found

    def busy(self) -> Iterator[tuple[int, tuple[Collective, ...]]]:
        shells, inside = self._shells, self._inside
        return ((row, inside.get(row) or shells[row].collectives) for row in sorted(self.marked(BUSY)))

    def taken_at_ns(self) -> Sequence[int]:
        return cast("Sequence[int]", self._now()[:, TAKEN].tolist())

    def entered_in(self, group: GroupRows) -> Sequence[int]:
        np = numpy()
        places = np.array(group.places, np.intp) if group.place is None else group.place
        found = self._now()[np.array(group.rows, np.intp), HEAD + PER_GROUP * places + ENTERED]
        return cast("Sequence[int]", found.tolist())

    def hashes(self) -> Iterator[tuple[int, tuple[PartHash, ...]]]:
        return ((row, hashes) for row, hashes in enumerate(self._hashes) if hashes)

    def newest_hashes(self) -> dict[int, int]:
        np = numpy()
        steps, tables = _column(self._hash_steps), _column(self._hash_tables)
        steps, tables = steps[steps >= 0], tables[steps >= 0]
        return {table: int(steps[tables == table].min()) for table in np.unique(tables).tolist()}

    def value_median(self, name: str) -> float | None:
        np = numpy()
        values, has = np.zeros(len(self), np.float64), np.zeros(len(self), bool)
        for number, layout in enumerate(self._layouts):
            if name in layout.values:
                rows = self._rows_of(number)
                column = self._now()[rows, layout.tail + layout.values.index(name)]
                values[rows], has[rows] = np.ascontiguousarray(column).view(np.float64), True
        if not has.any():
            return None
        if self.marked(BROKEN):  # what is no number has no place in an order: as the plain board has it
            return median(values[has].tolist())
        return float(middles(values[has]))

    def newest_values_step(self) -> int:
        return int(self._now()[:, VALUES_STEP].max())

    def trains(self) -> bool:
        return bool(self._now()[:, DONE].any())

    def throttled_ns(self) -> Sequence[int]:
        return cast("Sequence[int]", self._now()[:, THROTTLED_NS].tolist())

    def run_delays_ns(self) -> Sequence[int]:
        return cast("Sequence[int]", self._now()[:, DELAY].tolist())

    def cpu_ns(self) -> Sequence[int]:
        return cast("Sequence[int]", self._now()[:, CPU].tolist())

    def crowd_ns(self) -> float:
        return float(middles(self._now()[:, DELAY]))

    def longest_idle_s(self) -> float:
        active = self._now()[:, ACTIVE]
        active = numpy().where(active == 0, self._started, active)
        return max(0, int((self._now()[:, TAKEN] - active).max())) / 1e9

    def kinds(self) -> Iterator[tuple[Sequence[int], str]]:
        np = numpy()
        _ = self.groups
        most = max((layout.groups for layout in self._layouts), default=0)
        if self._used is not self._sizes:
            roles: dict[str, int] = {}
            numbers = [roles.setdefault(shell.role, len(roles)) for shell in self._shells]
            self._used, self._kept = self._sizes, np.array([self._sizes, numbers], np.int64)
        columns = np.vstack([self._kept, self._now()[:, DONE], *map(self._entered_at, range(most))])
        left = np.arange(len(self))
        for _ in range(_KINDS):
            same = (columns == columns[:, :1]).all(axis=0)
            rows = left[same].tolist()
            yield rows, self._shells[rows[0]].role
            columns, left = columns[:, ~same], left[~same]
            if not len(left):
                return
        rest = zip(left.tolist(), zip(*columns.tolist(), strict=True), strict=True)
        found: dict[tuple[int, ...], list[int]] = {}
        for row, use in rest:
            found.setdefault(use, []).append(row)
        for rows in found.values():
            yield rows, self._shells[rows[0]].role

    def _entered_at(self, place: int) -> NDArray[Any]:
        np = numpy()
        found = self._now()[:, HEAD + PER_GROUP * place + ENTERED]
        has = np.array([*(layout.groups > place for layout in self._layouts), False])[self._layout]
        return cast("NDArray[Any]", found if has.all() else np.where(has, found, -1))

    def _members(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The rows of all groups, one group after the other; their places there; and where each begins."""
        groups = self.groups
        if self._indexed is not groups:
            np = numpy()
            rows = np.array([row for group in groups.values() for row in group.rows], np.intp)
            places = np.array([place for group in groups.values() for place in group.places], np.intp)
            sizes = [len(group.rows) for group in groups.values()]
            self._indexed, self._index = groups, (rows, places, np.cumsum([0, *sizes])[:-1])
        return self._index

    def shortest_waits_ns(self) -> dict[str, float]:
        np = numpy()
        if not self.groups:
            return {}
        rows, places, begins = self._members()
        waits = self._now()[rows, HEAD + PER_GROUP * places + WAITED]
        none = np.iinfo(np.int64).max
        waits[waits == 0] = none
        least = np.minimum.reduceat(waits, begins).tolist()
        return {name: ns for name, ns in zip(self.groups, least, strict=True) if ns != none}

    # -- steps ----------------------------------------------------------------------------------------
    def _bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The first and the last kept step of each row."""
        if "bounds" not in self.notes:
            self.notes["bounds"] = _column(self.first), _column(self.last)
        return cast("tuple[NDArray[Any], NDArray[Any]]", self.notes["bounds"])

    def common_of(self, group: GroupRows) -> Sequence[int]:
        if self.gaps:
            return self.common(group.rows)
        found: dict[str, range] | None = self.notes.get("spans")
        if found is None:
            np = numpy()
            rows, _, begins = self._members()
            begin, end = self._bounds()
            first = np.maximum.reduceat(begin[rows], begins).tolist()
            last = np.minimum.reduceat(end[rows], begins).tolist()
            found = self.notes["spans"] = dict(zip(self.groups, map(_span, first, last), strict=True))
        return found[group.name]

    def newest_ns(self, rows: Iterable[int], newest: int) -> tuple[list[int], list[int]]:
        at: list[int] = []
        whose: list[int] = []
        for row in rows:
            if row in self._odd:
                return super().newest_ns(rows, newest)
            last = self.last[row]
            steps = range(max(self.first[row], last - newest + 1), last + 1)
            at += [step % STEPS_KEPT for step in steps]
            whose += [row] * len(steps)
        ring = self._steps()
        return ring.took[at, whose].tolist(), ring.data[at, whose].tolist()

    def own_ns(self, step: int) -> Sequence[int]:
        at = step % STEPS_KEPT
        return cast("Sequence[int]", numpy().maximum(self._steps().took[at] - self._steps().wait[at], 1))

    def data_wait_ns(self, step: int) -> Sequence[int]:
        return cast("Sequence[int]", self._steps().data[step % STEPS_KEPT])

    def made(self, step: int) -> Sequence[tuple[tuple[int, int], ...]]:
        return self._steps().made_by(step)

    def made_in(self, group: GroupRows, step: int) -> Sequence[int | None]:
        made = self._steps().numbers[step % STEPS_KEPT, :, group.rows]
        found = made[range(len(group.rows)), group.places].tolist()
        return [None if number < 0 else number for number in found]

    def _steps(self) -> WideRing:
        self._now()
        return self._ring

    def same_made(self, step: int) -> tuple[tuple[int, int], ...] | None:
        made = self._steps().numbers[step % STEPS_KEPT]
        if not bool((made == made[:, :1]).all()):
            return None
        return tuple((place, number) for place, number in enumerate(made[:, 0].tolist()) if number >= 0)

    def step_median_s(self, step: int) -> tuple[int, float]:
        if self.gaps:
            return super().step_median_s(step)
        took = self._steps().took[step % STEPS_KEPT]
        here = self._has(step)
        some = took if here.all() else took[here]
        if not len(some):
            return 0, 0.0
        half = len(some) // 2
        if len(some) % 2:
            return len(some), int(numpy().partition(some, half)[half]) / 1e9
        ordered = numpy().partition(some, (half - 1, half))
        return len(some), (int(ordered[half - 1]) / 1e9 + int(ordered[half]) / 1e9) / 2

    def _has(self, step: int) -> NDArray[Any]:
        """Which rows have completed a step that is kept."""
        first, last = self._bounds()
        return cast("NDArray[Any]", (first <= step) & (step <= last))

    def step_times_ns(self, step: int) -> list[int]:
        if self.gaps:
            rows = numpy().nonzero(self._has(step))[0].tolist()
            took = self._steps().took[step % STEPS_KEPT].tolist()
            found = []
            for row in rows:
                if row in self.gaps:
                    found += [one.step_ns for one in self[row].steps if one.step == step]
                else:
                    found.append(took[row])
            return found
        here = self._has(step)
        return cast("list[int]", self._steps().took[step % STEPS_KEPT][here].tolist())

    def by_most(self, after: int) -> Sequence[int]:
        if self.gaps:
            return super().by_most(after)
        count = len(self._rows)
        begin, end = self._bounds()
        first = int(numpy().partition(begin, count // 2)[count // 2])
        last = int(numpy().partition(end, (count - 1) // 2)[(count - 1) // 2])
        return range(max(after + 1, first), last + 1)


class _ByRank(Mapping[int, RankWindow]):
    """Windows that are made when they are asked for: a rank is at the row of its number."""

    def __init__(self, board: WideBoard) -> None:
        self._board = board

    def __getitem__(self, rank: int) -> RankWindow:
        if not 0 <= rank < len(self._board) or not self._board.has(rank):
            raise KeyError(rank)
        return self._board[rank]

    def __iter__(self) -> Iterator[int]:
        return filter(self._board.has, range(len(self._board)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def board_for(ranks: int) -> WindowBoard:
    """A board that lasts, for a job of so many ranks."""
    return WideBoard(ranks) if worth_it(ranks) else WindowBoard(ranks)


def _form(number: int, width: int) -> int:
    """The number of a skeleton and the width of its layout as one; 0 for a number that no agent gives."""
    return number * _WIDTHS + width if 0 < number < _NUMBERS else 0


def _places(ranks: tuple[int, ...]) -> slice | tuple[int, ...]:
    """Where they are: mostly they follow each other."""
    first, end = ranks[0], ranks[0] + len(ranks)
    return slice(first, end) if ranks == tuple(range(first, end)) else ranks


def _fill(column: array[int], where: slice | tuple[int, ...], number: int) -> None:
    if isinstance(where, slice):
        column[where] = array("q", (number,)) * (where.stop - where.start)
    else:
        for row in where:
            column[row] = number


def _at(column: Sequence[T], where: slice | tuple[int, ...]) -> Sequence[T]:
    return column[where] if isinstance(where, slice) else [column[row] for row in where]


def _read(blocks: Sequence[WindowBlock]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The rows of blocks of one shape, and their numbers."""
    np = numpy()
    count, columns = len(blocks[0].ranks), len(blocks[0].least) // 8
    least = np.frombuffer(b"".join([block.least for block in blocks]), "<i8")
    numbers = np.repeat(least.reshape(-1, columns), count, axis=0)
    flat = numbers.reshape(-1)
    ranks = np.array([block.ranks for block in blocks], np.intp).reshape(-1)
    more = [block.narrow for block in blocks], [block.narrow_values for block in blocks], "<u4"
    raw = [block.wide for block in blocks], [block.wide_values for block in blocks], "<i8"
    for at, values, form in (more, raw):
        if not any(at):
            continue
        sizes = [len(one) // 2 for one in at]
        block = np.repeat(np.arange(len(blocks)), sizes)
        begins = block * (count * columns) + np.frombuffer(b"".join(at), "<u2")
        places = begins[:, None] + np.arange(0, count * columns, columns)
        read = np.frombuffer(b"".join(values), form).reshape(-1, count)
        if form == "<u4":
            flat[places] += read
        else:
            flat[places] = read
    return ranks, numbers


def _column(numbers: Sequence[int]) -> NDArray[Any]:
    np = numpy()
    found = np.frombuffer(numbers, np.int64) if isinstance(numbers, array) else np.array(numbers, np.int64)
    return cast("NDArray[Any]", found.copy())


def _span(first: int, last: int) -> range:
    return range(max(first, last - STEPS_KEPT + 1), last + 1)
