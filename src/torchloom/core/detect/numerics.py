"""Numbers that went wrong: NaN and Inf, and spikes of loss or gradient norm. Parameters: replicas.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, log

from msgspec import Struct

from torchloom.core.detect import words
from torchloom.core.detect.board import BROKEN, PEAKS, WindowBoard
from torchloom.core.detect.robust import median, spread
from torchloom.core.detect.watched_metrics import CURVES, PARAMETERS
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Finding

HISTORY = 64
WARM = 16
SCORE = 6.0
TIMES = 5.0
LEAST_SCORE = 3.5
"""A curve that jumps about reaches any factor by chance, so it must be unusual for this one as well."""
DOUBT = 10
LEAST = 1.5
"""A value below this many times the usual is no spike, however quiet the curve was."""


class Curves(Struct, frozen=True):
    """The newest values of each watched metric: plain data, kept by the caller."""

    values: dict[str, tuple[float, ...]] = {}
    last_step: int = 0
    told: dict[str, int] = {}
    """The step of the newest spike of each: it is in the windows for a while."""


OLD_STEPS = 200
"""At a first look, a broken value from this many steps ago is not reported."""


def broken_values(
    windows: Sequence[RankWindow], runs: Mapping[int, int]
) -> tuple[dict[int, int], list[Finding]]:
    """NaN or Inf in any metric or parameter of any rank, at once. A run of them that began and ended between
    two looks is reported too: `runs` has, by rank, the last known one."""
    bad: dict[int, list[str]] = {}
    steps: list[int] = []
    board = WindowBoard.of(windows)
    marked = board.marked(BROKEN)
    if not marked and len(runs) >= len(board) and not any(runs.values()):
        return dict(runs), []  # the usual case costs next to nothing
    now = dict(runs) | {rank: 0 for row, rank in enumerate(board.ranks) if row not in marked}
    odd = board.with_mark(BROKEN)
    for window in odd:
        names = []
        if not all(map(isfinite, window.values.values())):
            names = sorted(k for k, v in window.values.items() if not isfinite(v))
        last = window.broken
        if last is not None and last.run > runs.get(window.rank, 0):
            now[window.rank] = last.run
            if window.rank in runs or window.steps_done - last.step <= OLD_STEPS:
                names = names or [last.name]
        elif last is None:
            now[window.rank] = 0
        if names:
            bad[window.rank] = names
            steps.append(last.step if last is not None else window.steps_done)
    if not bad:
        return now, []
    guilty = [w for w in odd if w.rank in bad]
    names = sorted({name for found in bad.values() for name in found})
    # A reduced loss is broken everywhere at once: then no rank can be named.
    everywhere = len(guilty) == len(board) > 1
    step = min(steps)
    # Parameters are looked at now and then: which step broke them is not known, only when it was seen.
    inputs: dict[str, float | str] = {"seen_step" if names == [PARAMETERS] else "step": step}
    return now, [
        Finding(
            kind="not-a-number",
            ranks=() if everywhere else tuple(sorted(w.rank for w in guilty)),
            node="" if everywhere else words.node_of(guilty),
            sentence=f"{_what(names, words.whom(guilty))} at step {step + words.offset_of(board)}",
            confidence=0.99,
            certain=True,
            certainty="it is not a number",
            inputs=inputs,
        )
    ]


def _what(names: Sequence[str], whom: str) -> str:
    if list(names) == [PARAMETERS]:
        return f"the parameters of {whom} are not all finite numbers"
    if len(names) > 1:
        return f"{', '.join(names)} of {whom} are not finite numbers"
    return f"{names[0]} of {whom} is not a finite number"


def peaks_of(windows: Sequence[RankWindow]) -> dict[str, tuple[int, float]]:
    """The highest values of late, where most ranks had theirs at the same step: (step, median)."""
    found: dict[str, tuple[int, float]] = {}
    told = WindowBoard.of(windows).with_mark(PEAKS)
    for name in CURVES:
        at: dict[int, list[float]] = {}
        for window in told:
            if name in window.peaks:
                at.setdefault(window.peaks[name][0], []).append(window.peaks[name][1])
        step = max(at, key=lambda s: (len(at[s]), s), default=0)
        if step and 2 * len(at[step]) > len(windows):
            found[name] = step, median(at[step])
    return found


def spikes(
    curves: Curves,
    step: int,
    values: Mapping[str, float],
    peaks: Mapping[str, tuple[int, float]] | None = None,
    offset: int = 0,
) -> tuple[Curves, list[Finding]]:
    """Take the newest values (medians over ranks) of a step in, and judge the highest since the last look.

    `offset` leads to the training step, by which a person knows it.
    """
    if step <= curves.last_step:
        return curves, []
    kept = dict(curves.values)
    found = []
    told = dict(curves.told)
    for name in CURVES:
        value = values.get(name)
        if value is None or not isfinite(value):
            continue
        past = kept.get(name, ())
        at, highest = (peaks or {}).get(name, (step, value))
        if highest < value or at <= told.get(name, 0):
            at, highest = step, value
        finding = _spike(name, at, min(curves.last_step, at - 1), highest, past, offset)
        if finding is not None:
            found.append(finding)
            told[name] = at
        # Spikes are learned too: medians ignore a few, and a level that stays is the new usual one.
        kept[name] = (*past, value)[-HISTORY:]
    return Curves(kept, step, told), found


def _spike(
    name: str, step: int, good_step: int, value: float, past: Sequence[float], offset: int
) -> Finding | None:
    if len(past) < WARM or value <= 0 or min(past) <= 0:
        return None  # a loss that may be negative has no natural scale, so nothing is said about it
    logs = [log(v) for v in past]
    centre = median(logs)
    over = log(value) - centre
    # A spread learned from few values may be far too small, and of every step's value the highest is judged.
    score = over / (max(spread(logs, centre), 0.02) * (1 + DOUBT / len(past)))
    if over < log(LEAST) or score <= (SCORE if over < log(TIMES) else LEAST_SCORE):
        return None
    times = value / median(past)
    return Finding(
        kind="spike",
        ranks=(),
        sentence=f"{name} jumped to {value:.4g} at step {step + offset}, {_factor(times)}× its usual value",
        confidence=0.7 if over < log(TIMES) else 0.9,
        certainty="a spike may pass by itself",
        inputs={"step": step, "good_step": good_step, "score": score, "times": times},
    )


def _factor(times: float) -> str:
    return f"{times:.1f}" if times < 100 else f"{times:,.0f}"
