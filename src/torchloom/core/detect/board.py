"""The newest windows of all ranks of a job, kept between looks, with columns of what many rules ask.

A rule that walks over thousands of windows pays for each record it touches, and there are some twenty rules.
So what they ask of every rank is noted once, when its window comes: a few numbers in columns, and marks for
whatever is out of the ordinary. A rule then asks the columns, or walks over the marked rows. Judges nobody.

A board that lasts (`WindowBoard(ranks)`) takes in one window after the other and keeps the steps before them;
one made of windows (`WindowBoard.of`) is for a single look. A large job has one of arrays (wide_board.py).
All answer alike, which a test compares. Over 400 lines, because all questions of the rules are answered here.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from operator import sub
from typing import Any, cast, overload

from msgspec.structs import force_setattr

from torchloom.core.detect.kept_steps import STEPS_KEPT, StepRing, joined_hashes, joined_steps
from torchloom.core.detect.robust import median
from torchloom.core.detect.thresholds import PLAIN
from torchloom.core.detect.window import RankWindow
from torchloom.core.detect.window_blocks import Skeletons
from torchloom.model.windows import Collective, GroupPosition, PartHash, StepTimes, WindowBlock

DEAD, STOPPED, PHASE, UNRECORDED, CHILDREN, DEBUGGED, THROTTLED = 1, 2, 4, 8, 16, 32, 64
PEAKS, VALUES, BROKEN, PAIRS, BUSY, LEFT, HASHED, OFFSET = 128, 256, 512, 1024, 2048, 4096, 8192, 16384
APPROACHING, DEVICE, HALTED, FAILED = 1 << 15, 1 << 16, 1 << 17, 1 << 18
"""Marks of a row: what a rule looks for, so that it may pass the others over. BROKEN: a value may be no
number. PHASE: it announced a phase. BUSY: it is in a collective; APPROACHING: its device has not reached it.
HALTED: it was found stopped lately, and runs. FAILED: a collective of it has failed."""
_ALL = tuple(1 << n for n in range(19))
_DEAD_STATES, _PLAIN_STATES = frozenset("XZ"), frozenset("RSDI")
ABSENT = RankWindow(rank=-1, node="", taken_ns=0)


def marks_of(window: RankWindow) -> int:
    """All marks of a window."""
    facts = window.process
    marks = state_marks(facts.state)
    if window.phase not in PLAIN:
        marks |= PHASE
    if not window.records:
        marks |= UNRECORDED
    if facts.children:
        marks |= CHILDREN
    if facts.tracer:
        marks |= DEBUGGED
    if facts.throttled_ns_per_step:
        marks |= THROTTLED
    if facts.stops:
        marks |= HALTED
    if window.peaks:
        marks |= PEAKS
    if values := window.values:
        marks |= VALUES if isfinite(sum(values.values())) else VALUES | BROKEN
    if window.broken is not None:
        marks |= BROKEN
    if window.failed is not None:
        marks |= FAILED
    if window.pairs:
        marks |= PAIRS
    marks |= inside_marks(window)
    if window.left:
        marks |= LEFT
    if window.hashes:
        marks |= HASHED
    if window.offset is not None:
        marks |= OFFSET
    if window.accelerator is not None:
        marks |= DEVICE
    return marks


def inside_marks(window: RankWindow) -> int:
    if not window.collectives:
        return 0
    return BUSY | APPROACHING if window.collectives[0].approaching else BUSY


def state_marks(state: str) -> int:
    if state in _PLAIN_STATES:
        return 0
    return DEAD if state in _DEAD_STATES else STOPPED


class GroupRows:
    """A process group as its ranks' windows show it."""

    __slots__ = ("_numbered", "name", "place", "places", "ranks", "rows", "size")

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self._numbered: tuple[dict[int, int], float] | None = None
        self.rows: list[int] = []
        self.ranks: tuple[int, ...] = ()
        self.places: list[int] = []
        self.place: int | None = None
        """Its place in the tables of its ranks, if it is the same in all of them."""

    def numbered(self, outlines: Sequence[RankWindow]) -> tuple[dict[int, int], float]:
        """By rank within the group, which of its members that is (the last of those that say so), and the
        longest timeout of these. Worked out once: most groups are never asked."""
        if self._numbered is None:
            there = [outlines[row].groups[at] for row, at in zip(self.rows, self.places, strict=True)]
            of = {one.rank: member for member, one in enumerate(there)}
            self._numbered = of, max([there[member].timeout_s for member in of.values()])
        return self._numbered


class WindowBoard(Sequence[RankWindow]):
    def __init__(self, ranks: int) -> None:
        """For windows of ranks 0 to `ranks` - 1, each at the row of its number."""
        self._rows: list[RankWindow] = [ABSENT] * ranks
        self._ring: StepRing | None = self._new_ring(ranks)
        self._skeletons = Skeletons()
        self.ranks: Sequence[int] = range(ranks)
        """Of each row."""
        self._start()

    @staticmethod
    def _new_ring(ranks: int) -> StepRing:
        return StepRing(ranks)

    @classmethod
    def of(cls, windows: Sequence[RankWindow]) -> WindowBoard:
        """A board of these windows, in their order."""
        if isinstance(windows, WindowBoard):
            return windows
        made = cls.__new__(cls)
        made._rows = list(windows)
        made._ring = None
        made.ranks = [window.rank for window in made._rows]
        made._start()
        for row, window in enumerate(made._rows):
            made._note(row, ABSENT, window)
            made._span(row, window.steps)
        return made

    def _start(self) -> None:
        count = len(self._rows)
        zeros = bytes(8 * count)
        self.taken_ns, self.active_ns = array("q", zeros), array("q", zeros)
        self.steps_done, self.values_step = array("q", zeros), array("q", zeros)
        self.run_delay_ns = array("q", zeros)
        self.first, self.last = array("q", [1]) * count, array("q", zeros)
        """The kept steps of each row; none where the last is before the first."""
        self.gaps: set[int] = set()
        """Rows whose steps are not all there between the first and the last."""
        self.special: set[int] = set()
        """Rows that may have a collective other than a sum or a broadcast of rank 0 in their kept steps."""
        self._marks = [0] * count
        self._marked: dict[int, set[int]] = {mark: set() for mark in _ALL}
        self._entered: list[array[int]] = []
        self._waits: list[array[int]] = []
        self._groups: dict[str, GroupRows] | None = None
        self._sizes: list[int] = []
        """A number for the sizes of the groups of each row."""
        self.notes: dict[str, Any] = {}
        """What several rules work out in one look; forgotten when a window comes."""

    # -- as a sequence ------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[RankWindow]:
        return iter(self._rows)

    @overload
    def __getitem__(self, place: int) -> RankWindow: ...
    @overload
    def __getitem__(self, place: slice) -> list[RankWindow]: ...
    def __getitem__(self, place: int | slice) -> RankWindow | list[RankWindow]:
        return self._rows[place]

    def has(self, row: int) -> bool:
        return self._rows[row] is not ABSENT

    # -- taking in ----------------------------------------------------------------------------------
    def put(self, window: RankWindow, anew: bool = False) -> None:
        """The newest window of a rank. Windows carry what is new: what was known of its steps and hashes
        stays, unless it begins `anew`. The window is the board's now: its steps become the kept ones."""
        try:
            self._put(window, anew)
        except OverflowError:  # a number that nobody can have measured: nothing is known of the rank then
            self._rows[window.rank] = ABSENT
            self._note(window.rank, ABSENT, ABSENT)
            self._span(window.rank, ())
            raise

    def _put(self, window: RankWindow, anew: bool) -> None:
        row = window.rank
        before = self._rows[row]
        ring = self._ring
        assert ring is not None, "windows are put on a board that lasts"
        if before is ABSENT or anew:
            kept = list(window.steps[-STEPS_KEPT:])
            self._refill(row, kept, ring)
        else:
            kept = cast("list[StepTimes]", before.steps)  # see below
            fresh: Sequence[StepTimes] = window.steps
            if fresh is not kept and fresh:
                self._append(row, kept, fresh, ring)
            if before.hashes:
                force_setattr(window, "hashes", joined_hashes(before.hashes, window.hashes))
        # A list that grows: a new tuple of 32 for each of thousands of windows would cost more than judging.
        force_setattr(window, "steps", kept)
        self._rows[row] = window
        self._note(row, before, window)
        if self.notes:
            self.notes = {}

    def _append(self, row: int, kept: list[StepTimes], fresh: Sequence[StepTimes], ring: StepRing) -> None:
        first, last = fresh[0].step, self.last[row]
        whole = fresh[-1].step - first == len(fresh) - 1 and row not in self.gaps
        if whole and kept and self.first[row] <= first <= last + 1:
            fresh = fresh[last + 1 - first :]  # some are sent again now and then
            if not fresh:
                return
            kept += fresh
            over = len(kept) - STEPS_KEPT
            if over > 0:
                del kept[:over]
                self.first[row] = kept[0].step
            self.last[row] = fresh[-1].step
            ring.put(row, fresh)
            for one in fresh:
                if one.marked:
                    self.special.add(row)
                    return
            if row in self.special and not any(one.marked for one in kept):
                self.special.discard(row)
        else:
            kept[:] = joined_steps(kept, fresh)
            self._refill(row, kept, ring)

    def _refill(self, row: int, kept: Sequence[StepTimes], ring: StepRing) -> None:
        self._span(row, kept)
        if row not in self.gaps:
            ring.put(row, kept)

    def _span(self, row: int, kept: Sequence[StepTimes]) -> None:
        if kept:
            self.first[row], self.last[row] = kept[0].step, kept[-1].step
        else:
            self.first[row], self.last[row] = 1, 0
        if self.last[row] - self.first[row] != len(kept) - 1:
            self.gaps.add(row)
        else:
            self.gaps.discard(row)
        if any(one.marked for one in kept):
            self.special.add(row)
        else:
            self.special.discard(row)

    def take(
        self, block: WindowBlock, rows: Collection[int] | None = None, anew: Collection[int] = ()
    ) -> list[int]:
        """The windows of a block, or of some of its rows; of those in `anew` nothing is kept. Which rows were
        read: not those whose skeleton was lost. Raises ValueError for a block that does not fit together."""
        found = []
        for row, window in self._skeletons.read(block, rows):
            self.put(window, row in anew)
            found.append(row)
        return found

    def _note(self, row: int, before: RankWindow, window: RankWindow) -> None:
        self._write(row, window)
        marks = marks_of(window)
        if marks != self._marks[row]:
            changed, self._marks[row] = marks ^ self._marks[row], marks
            for mark in _ALL:
                if changed & mark:
                    (self._marked[mark].add if marks & mark else self._marked[mark].discard)(row)
        groups, known = window.groups, before.groups
        if len(groups) != len(known) or before is ABSENT:
            self._groups = None
            self._widen(len(groups))
            for column in self._entered[len(groups) :]:
                column[row] = -1
        elif self._groups is not None:
            for group, old in zip(groups, known, strict=True):
                if (
                    group.name != old.name
                    or group.size != old.size
                    or group.rank != old.rank
                    or group.timeout_s != old.timeout_s
                ):
                    self._groups = None
                    break
        for group, entered, waits in zip(groups, self._entered, self._waits, strict=False):
            entered[row], waits[row] = group.entered, group.wait_ns

    def _write(self, row: int, window: RankWindow) -> None:
        self.taken_ns[row] = window.taken_ns
        self.active_ns[row] = window.last_activity_ns or window.started_ns
        self.steps_done[row] = window.steps_done
        self.values_step[row] = window.values_step
        self.run_delay_ns[row] = window.process.run_delay_ns_per_step

    def _widen(self, places: int) -> None:
        while len(self._entered) < places:
            self._entered.append(array("q", [-1]) * len(self._rows))
            self._waits.append(array("q", [0]) * len(self._rows))

    # -- asking ---------------------------------------------------------------------------------------
    def marked(self, mark: int) -> set[int]:
        """Rows with a mark."""
        return self._marked[mark]

    def with_mark(self, mark: int) -> list[RankWindow]:
        """Their windows, in the order of the board."""
        found = self._marked[mark]
        if len(found) == len(self._rows):
            return self._rows
        return [self._rows[row] for row in sorted(found)]

    def outlines(self) -> Sequence[RankWindow]:
        """The windows, as far as the names of groups and of roles go."""
        return self._rows

    def outline(self, row: int) -> RankWindow:
        """The window of a row, of which only what rarely changes may be asked: no times, counts or steps.
        With a device it is the whole one."""
        return self._rows[row]

    def by_rank(self) -> Mapping[int, RankWindow]:
        """The window of each rank."""
        return {window.rank: window for window in self._rows}

    def sketches(self, ranks: Iterable[int]) -> list[RankWindow]:
        """The windows of these ranks, of which everything may be asked that is about the rank alone: not its
        groups, collectives, steps, values and hashes."""
        return list(map(self.by_rank().__getitem__, ranks))

    def busy(self) -> Iterator[tuple[int, tuple[Collective, ...]]]:
        """The rows in a collective, in their order, each with its collectives."""
        return ((row, self._rows[row].collectives) for row in sorted(self._marked[BUSY]))

    def taken_at_ns(self) -> Sequence[int]:
        """For each row when its window was taken."""
        return self.taken_ns

    def roles(self) -> Iterable[str]:
        """For each row its role, or an empty text."""
        return (window.role for window in self.outlines())

    def hashes(self) -> Iterator[tuple[int, tuple[PartHash, ...]]]:
        """Rank and hashes of all rows that have some."""
        return ((window.rank, window.hashes) for window in self.with_mark(HASHED))

    def newest_hashes(self) -> dict[int, int]:
        """By table, the newest step of which all of its ranks have reported a hash."""
        least: dict[int, int] = {}
        for _, hashes in self.hashes():
            newest = hashes[-1]
            if newest.step < least.get(newest.table, newest.step + 1):
                least[newest.table] = newest.step
        return least

    def value_median(self, name: str) -> float | None:
        """The newest values of a metric, in the median over all rows that report it."""
        found = [window.values[name] for window in self.with_mark(VALUES) if name in window.values]
        return median(found) if found else None

    def newest_values_step(self) -> int:
        return max(self.values_step)

    def trains(self) -> bool:
        """Whether any rank has completed a step."""
        return any(self.steps_done)

    def throttled_ns(self) -> Sequence[int]:
        """For each row how long a quota keeps it from running in a step."""
        return [window.process.throttled_ns_per_step for window in self]

    def run_delays_ns(self) -> Sequence[int]:
        return self.run_delay_ns

    def cpu_ns(self) -> Sequence[int]:
        return [window.process.cpu_ns_per_step for window in self]

    def work(self) -> Sequence[float]:
        """For each row the samples or tokens of a step."""
        return [window.work_per_step for window in self.outlines()]

    def crowd_ns(self) -> float:
        """How long a rank waits for a CPU in a step, in the median."""
        return median(self.run_delay_ns)

    def longest_idle_s(self) -> float:
        """Of all ranks, the longest since the last sign of progress."""
        return max(0, max(map(sub, self.taken_ns, self.active_ns), default=0)) / 1e9

    @property
    def groups(self) -> dict[str, GroupRows]:
        """All groups, in the order in which the rows name them."""
        if self._groups is None:
            found: dict[str, GroupRows] = {}
            seen: dict[str, dict[int, tuple[int, int]]] = {}
            for row, window in enumerate(self.outlines()):
                for place, group in enumerate(window.groups):
                    name = group.name
                    if name not in found:
                        found[name], seen[name] = GroupRows(name, group.size), {}
                    seen[name][window.rank] = row, place
            for name, made in found.items():
                members = seen[name]
                made.ranks = tuple(members)
                made.rows = [row for row, _ in members.values()]
                made.places = [place for _, place in members.values()]
                made.place = made.places[0] if len(set(made.places)) == 1 else None
            shapes: dict[tuple[int, ...], int] = {}
            sizes = (tuple([g.size for g in w.groups]) for w in self.outlines())
            self._sizes = [shapes.setdefault(one, len(shapes)) for one in sizes]
            self._groups = found
        return self._groups

    def position(self, group: GroupRows, member: int) -> tuple[RankWindow, GroupPosition]:
        window = self[group.rows[member]]
        return window, window.groups[group.places[member]]

    def entered_in(self, group: GroupRows) -> Sequence[int]:
        """How many collectives of a group each of its members has entered."""
        return [self._entered[at][row] for row, at in zip(group.rows, group.places, strict=True)]

    def shortest_waits_ns(self) -> dict[str, float]:
        """By group, how long the rank waits in its collectives in a step that waits least; without those that
        do not wait."""
        found: dict[str, float] = {}
        for name, group in self.groups.items():
            columns = zip(group.rows, group.places, strict=True)
            if waits := [ns for row, place in columns if (ns := self._waits[place][row])]:
                found[name] = min(waits)
        return found

    def kinds(self) -> Iterator[tuple[Sequence[int], str]]:
        """Rows that have the same role, have done as much, and have entered as many collectives in groups of
        the same sizes, each set with its role."""
        found: dict[tuple[object, ...], list[int]] = {}
        for row, use in enumerate(zip(self.roles(), self.uses(), strict=True)):
            found.setdefault(use, []).append(row)
        return ((rows, cast(str, role)) for (role, _), rows in found.items())

    def uses(self) -> Iterator[tuple[object, ...]]:
        """For each row how much it has done, and what it has entered in groups of which size. Equal ones are
        alike; the others must be compared."""
        _ = self.groups
        return zip(self.steps_done, self._sizes, *self._entered, strict=True)

    # -- steps ----------------------------------------------------------------------------------------
    def common(self, rows: Sequence[int]) -> Sequence[int]:
        """The kept steps that all of these rows have completed, in order."""
        if not rows:
            return ()
        whole = len(rows) == len(self._rows)
        first = max(self.first if whole else map(self.first.__getitem__, rows))
        last = min(self.last if whole else map(self.last.__getitem__, rows))
        steps: Sequence[int] = range(max(first, last - STEPS_KEPT + 1), last + 1)
        odd = self.gaps.intersection(rows) if self.gaps else ()
        if not odd:
            return steps
        shared = set.intersection(*({one.step for one in self[row].steps} for row in odd))
        return sorted(step for step in shared if first <= step <= last)[-STEPS_KEPT:]

    def newest_ns(self, rows: Iterable[int], newest: int) -> tuple[list[int], list[int]]:
        """How long the newest steps of some rows took, and how long they waited for data."""
        steps = [one for row in rows for one in self[row].steps[-newest:]]
        return [one.step_ns for one in steps], [one.data_wait_ns for one in steps]

    def own_ns(self, step: int) -> Sequence[int]:
        """For each row its own time in a step, at least 1 ns. Only rows without gaps that have it count."""
        if self._ring is not None:
            return cast("Sequence[int]", self._ring.own[step % STEPS_KEPT])
        return [max(1, one.step_ns - one.wait_ns) if one else 0 for one in self._at(step)]

    def data_wait_ns(self, step: int) -> Sequence[int]:
        if self._ring is not None:
            return cast("Sequence[int]", self._ring.data[step % STEPS_KEPT])
        return [one.data_wait_ns if one else 0 for one in self._at(step)]

    def span(self) -> tuple[int, int]:
        """The first and the last kept step that all rows have, if there are any."""
        return max(self.first), min(self.last)

    def common_of(self, group: GroupRows) -> Sequence[int]:
        """The kept steps that all ranks of a group have completed, in order."""
        return self.common(group.rows)

    def same_made(self, step: int) -> tuple[tuple[int, int], ...] | None:
        """What all rows had made by the end of a step that all have completed, if it is the same."""
        made = self.made(step)
        return made[0] if made.count(made[0]) == len(made) else None

    def made_in(self, group: GroupRows, step: int) -> Sequence[int | None]:
        """How many collectives of a group each rank had made by the end of a step; None: not known."""
        made = self.made(step)
        members = zip(group.rows, group.places, strict=True)
        return [next((n for at, n in made[row] if at == place), None) for row, place in members]

    def made(self, step: int) -> Sequence[tuple[tuple[int, int], ...]]:
        """For each row how many collectives it had made by the end of a step, by place of the group."""
        if self._ring is not None:
            return self._ring.made[step % STEPS_KEPT]
        key = f"made {step}"
        if key not in self.notes:
            self.notes[key] = [one.made if one else () for one in self._at(step)]
        return cast("Sequence[tuple[tuple[int, int], ...]]", self.notes[key])

    def step_median_s(self, step: int) -> tuple[int, float]:
        """How many ranks have completed a step, and how long it took in the median."""
        times_ns = self.step_times_ns(step)
        if not times_ns:
            return 0, 0.0
        # As the median of the times in seconds, with a division for the middle ones only.
        times_ns.sort()
        half = len(times_ns) // 2
        upper = times_ns[half] / 1e9
        return len(times_ns), upper if len(times_ns) % 2 else (times_ns[half - 1] / 1e9 + upper) / 2

    def step_times_ns(self, step: int) -> list[int]:
        """How long the step took on each rank that has completed it."""
        if self._ring is not None and not self.gaps:
            took = self._ring.took[step % STEPS_KEPT]
            if max(self.first) <= step <= min(self.last):
                return cast("list[int]", took.tolist())
            spans = zip(took, self.first, self.last, strict=True)
            return [ns for ns, first, last in spans if first <= step <= last]
        found = []
        for row, (first, last) in enumerate(zip(self.first, self.last, strict=True)):
            if first <= step <= last:
                steps = self[row].steps
                if row not in self.gaps:
                    found.append(steps[step - first].step_ns)
                else:
                    found += [one.step_ns for one in steps if one.step == step]
        return found

    def by_most(self, after: int) -> Sequence[int]:
        """Later steps than this one that more than half of the ranks may have completed, in order."""
        if self.gaps:
            return sorted({one.step for window in self for one in window.steps if one.step > after})
        count = len(self._rows)
        first, last = sorted(self.first)[count // 2], sorted(self.last)[(count - 1) // 2]
        return range(max(after + 1, first), last + 1)

    def _at(self, step: int) -> Iterator[StepTimes | None]:
        for window, first, last in zip(self._rows, self.first, self.last, strict=True):
            at = step - first
            yield window.steps[at] if 0 <= at < len(window.steps) and step <= last else None
