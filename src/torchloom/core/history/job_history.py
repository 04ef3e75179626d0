"""What is kept of a job over time: its numbers, its logged values and settings, and every rank's own time.

Pure: times and telemetry are arguments. Every series exists twice, recent in seconds and for the whole life
of the job in buckets that grow with it (series.py), so a day of a job with 1,000 ranks takes a few MB and no
more. It is a picture for people; nothing is decided by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from torchloom.core.history.series import Lanes, PackedLanes, unpack
from torchloom.model.messages import WorkerPulse
from torchloom.model.windows import RankWindow

MOST_NAMES = 48
"""Series of one job; names that come later are not kept."""
MOST_NAME = 128
RECENT_S, RECENT = 2.0, 900
LIFE = 1024
RANKS_RECENT_S, RANKS_RECENT = 5.0, 64
RANKS_LIFE_S, RANKS_LIFE = 2.0, 192
PIECE = 256
"""Ranks that are recorded at once."""
WIDE = 2048
"""Jobs with more ranks are sampled seldom, so their first buckets are wider."""
RANKS_BYTES = 6 << 20
"""For the ranks of one job; the wider a job, the coarser its lanes."""
LANE_BYTES = 3 * 4 + 2 + 2 * 4 + 1

PHASES = (
    "",
    "training",
    "other",
    "data-wait",
    "compiling",
    "control-wait",
    "ending",
    "starting",
    "paused",
    "stalled",
)
"""Phases of a rank; of several within one bucket the last of these is kept."""
STALLED_S, STALLED_STEPS = 5.0, 10


SCHEMA = 1


class PackedHistory(Struct, frozen=True):
    tracks: dict[str, tuple[PackedLanes, PackedLanes]]
    ranks: tuple[PackedLanes, PackedLanes] | None
    schema: int = SCHEMA


@dataclass
class Track:
    recent: Lanes = field(default_factory=lambda: Lanes(RECENT_S, RECENT, halves=False))
    life: Lanes = field(default_factory=lambda: Lanes(RECENT_S, LIFE, halves=True))

    def add(self, at_s: float, mean: float, low: float, high: float) -> None:
        for lanes in (self.recent, self.life):
            lanes.add(at_s, mean, low, high)

    def best(self, since_s: float) -> Lanes:
        """The finer of the two, if it reaches back as far as is asked for."""
        return _finer(self.recent, self.life, since_s)


@dataclass
class Ranks:
    recent: Lanes
    life: Lanes

    def best(self, since_s: float) -> Lanes:
        return _finer(self.recent, self.life, since_s)


def _finer(recent: Lanes, life: Lanes, since_s: float) -> Lanes:
    begins_s, ever_s = recent.first * recent.width_s, (life.first + 1) * life.width_s
    return recent if recent.width_s < life.width_s and begins_s <= max(since_s, ever_s) else life


@dataclass
class History:
    """One job's. `record` about once a second."""

    tracks: dict[str, Track] = field(default_factory=dict)
    ranks: Ranks | None = None
    _seen: dict[int, int] = field(default_factory=dict)
    """By rank the newest step that was recorded …"""
    _generation: int = 0
    """… of this generation."""

    def record(
        self,
        at_s: float,
        generation: int,
        world: int,
        pulses: Mapping[int, WorkerPulse],
        windows: Sequence[RankWindow],
        numbers: Mapping[str, float],
    ) -> None:
        for _ in self.recorded(at_s, generation, world, pulses, windows, numbers):
            pass

    def recorded(
        self,
        at_s: float,
        generation: int,
        world: int,
        pulses: Mapping[int, WorkerPulse],
        windows: Sequence[RankWindow],
        numbers: Mapping[str, float],
    ) -> Iterator[None]:
        """Like `record`, in pieces: thousands of ranks take longer than a loop may be held up."""
        if generation != self._generation:
            self._generation, self._seen = generation, {}
        for name, value in numbers.items():
            self._add(name, at_s, [value])
        yield from self._steps(at_s, world, pulses, windows)
        for name, values in _logged(pulses).items():
            finite = [value for value in values if math.isfinite(value)]
            peaks = [window.peaks[name][1] for window in windows if name in window.peaks]
            if finite:
                self._add(f"metric:{name}", at_s, [*finite, *peaks], sum(finite) / len(finite))

    def _add(self, name: str, at_s: float, values: Sequence[float], middle: float | None = None) -> None:
        finite = [value for value in values if math.isfinite(value)]
        if not finite or len(name) > MOST_NAME:
            return
        track = self.tracks.get(name)
        if track is None:
            if len(self.tracks) >= MOST_NAMES:
                return
            track = self.tracks[name] = Track()
        mean = sum(finite) / len(finite) if middle is None else middle
        track.add(at_s, mean, min(finite), max(finite))

    def _steps(
        self, at_s: float, world: int, pulses: Mapping[int, WorkerPulse], windows: Sequence[RankWindow]
    ) -> Iterator[None]:
        lanes = self._lanes(world)
        all_s: list[float] = []
        for number, window in enumerate(windows, 1):
            if number % PIECE == 0:
                yield
            if window.rank >= lanes.recent.lanes:
                continue
            seen = self._seen.get(window.rank, 0)
            new = [step for step in window.steps if step.step > seen]
            if new:
                self._seen[window.rank] = new[-1].step
                all_s += [step.step_ns / 1e9 for step in new]
                own = [step.own_ns / 1e9 for step in new]
                extras = (
                    sum(step.wait_ns for step in new) / len(new) / 1e9,
                    sum(step.data_wait_ns for step in new) / len(new) / 1e9,
                )
                found = (sum(own) / len(own), min(own), max(own))
            else:
                extras, found = (math.nan, math.nan), (math.nan, math.nan, math.nan)
            code = code_of(pulses.get(window.rank), bool(new))
            for one in (lanes.recent, lanes.life):
                one.add(at_s, *found, lane=window.rank, extras=extras, code=code, count=max(1, len(new)))
        if all_s:
            all_s.sort()
            self._add("step_s", at_s, all_s, all_s[len(all_s) // 2])
            self._add("step_s_p95", at_s, [all_s[min(len(all_s) - 1, int(0.95 * len(all_s)))]])

    def _lanes(self, world: int) -> Ranks:
        world = max(1, world)
        if self.ranks is None:
            fits = RANKS_BYTES // (LANE_BYTES * world)
            recent = max(8, min(RANKS_RECENT, fits // 4))
            life = max(16, min(RANKS_LIFE, (fits - recent) // 2 * 2))
            self.ranks = Ranks(
                Lanes(RANKS_RECENT_S, recent, halves=False, lanes=world, extra=2),
                Lanes(
                    RANKS_LIFE_S if world <= WIDE else RANKS_RECENT_S,
                    life,
                    halves=True,
                    lanes=world,
                    extra=2,
                ),
            )
        self.ranks.recent.widen(world)
        self.ranks.life.widen(world)
        return self.ranks

    def pack(self) -> PackedHistory:
        ranks = self.ranks
        return PackedHistory(
            {name: (track.recent.pack(), track.life.pack()) for name, track in self.tracks.items()},
            (ranks.recent.pack(), ranks.life.pack()) if ranks is not None else None,
        )


def restored(packed: PackedHistory) -> History:
    """What was packed; ValueError if it does not fit together."""
    if packed.schema > SCHEMA:
        raise ValueError(f"it has schema {packed.schema}, this version reads up to {SCHEMA}")
    made = History()
    for name, (recent, life) in packed.tracks.items():
        made.tracks[name] = Track(unpack(recent), unpack(life))
    if packed.ranks is not None:
        made.ranks = Ranks(unpack(packed.ranks[0]), unpack(packed.ranks[1]))
    return made


def code_of(pulse: WorkerPulse | None, stepped: bool) -> int:
    """Index in PHASES of a rank's present phase."""
    if pulse is None:
        return 1 if stepped else 0
    if pulse.phase == "training":
        stands = pulse.idle_s > max(STALLED_S, STALLED_STEPS * pulse.step_s) and not stepped
        return PHASES.index("stalled" if stands else "training")
    return PHASES.index(pulse.phase if pulse.phase in PHASES else "other")


def _logged(pulses: Mapping[int, WorkerPulse]) -> dict[str, list[float]]:
    """The newest logged values of all ranks, by name."""
    found: dict[str, list[float]] = {}
    for pulse in pulses.values():
        for name, value in pulse.metrics.items():
            found.setdefault(name, []).append(value)
    return found
