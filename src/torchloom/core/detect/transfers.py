"""Transfers that take longer than they used to, seen in themselves and not in the steps.

How long a group needs once all ranks are there is far steadier than a step: on a busy host steps vary by a
half and transfers hardly. So a separate level is kept for every group (and every pair that sends), beside
the time that the ranks wait for a CPU: what that explains is no slow transfer. A raised level is not learned
while it is reported, until half an hour and so many steps are over (SlowLimits).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.board import WindowBoard
from torchloom.core.detect.matrix import delays_from_training
from torchloom.core.detect.robust import median
from torchloom.core.detect.slow import SETTLED, SlowLimits
from torchloom.core.detect.tournament import Pair
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Finding

KNOWN_STEPS = 20
"""Before so many steps are known, whatever is seen is learned."""
SUSPECT = 1.3
"""What is this much above the usual is not learned at once …"""
RAISED = 1.75
"""… and this much is worth reporting …"""
RAISED_SHARE = 0.1
"""… if it is at least this share of a step and no wait for a CPU explains it."""
LEARNS = 0.2


class Level(Struct, frozen=True):
    """How long the transfers of one group take in a step."""

    usual_ns: float
    crowd: float
    """What part of a step the ranks usually waited for a CPU; more than 1 with several threads."""
    suspect: int = 0
    """Steps in a row in which they took longer and it was not reported."""
    raised: int = 0
    """Steps in a row in which they took so much longer that it is worth reporting."""
    raised_s: float = 0.0

    @property
    def told(self) -> bool:
        return self.raised >= SETTLED


def transfer_times(windows: Sequence[RankWindow]) -> dict[str, float]:
    """Time a step that each group needs once everybody is there: the shortest wait among its ranks; and that
    sends from one rank to another need."""
    board = WindowBoard.of(windows)
    found: dict[str, float] | None = board.notes.get("transfers")
    if found is not None:
        return found
    found = {
        **board.shortest_waits_ns(),
        **{between(p): s * 1e9 for p, s in delays_from_training(board).items()},
    }
    board.notes["transfers"] = found
    return found


def between(pair: Pair) -> str:
    return f"from rank {pair[0]} to rank {pair[1]}"


def expected_times(
    windows: Sequence[RankWindow], levels: Mapping[str, Level], step_s: float
) -> dict[str, float]:
    """What they usually take, and how much longer the ranks wait for a CPU now: transfers wait with them."""
    step_ns = step_s * 1e9
    crowd = _crowd(windows, step_ns)
    return {name: level.usual_ns + _explained_ns(level, crowd, step_ns) for name, level in levels.items()}


def usual_crowd(levels: Mapping[str, Level]) -> float:
    """For which part of a step the ranks usually waited for a CPU."""
    return median([level.crowd for level in levels.values()]) if levels else 0.0


def _crowd(windows: Sequence[RankWindow], step_ns: float) -> float:
    return WindowBoard.of(windows).crowd_ns() / max(1.0, step_ns)


def _explained_ns(level: Level, crowd: float, step_ns: float) -> float:
    """Not the wait itself but its part of a step is compared: on a busy host a longer step waits longer."""
    return max(0.0, crowd - level.crowd) * step_ns


def watch_levels(
    windows: Sequence[RankWindow],
    known: Mapping[str, Level],
    limits: SlowLimits,
    *,
    step_s: float,
    fresh_s: Sequence[float],
    last_step: int,
    changed_step: int | None,
    learn: bool,
) -> dict[str, Level]:
    """Take one more look into account, at a pace of `step_s`, with the times of its new steps. `learn` says
    that the job is not slower than usual; `changed_step` is when somebody changed its settings last."""
    step_ns = step_s * 1e9
    crowd = _crowd(windows, step_ns)
    levels: dict[str, Level] = {}
    for name, now in transfer_times(windows).items():
        level = known.get(name)
        if level is None:
            level = Level(now, crowd)
        elif last_step < KNOWN_STEPS or now <= SUSPECT * level.usual_ns:
            level = _learned(level, now, crowd) if learn or last_step < KNOWN_STEPS else _calm(level)
        else:
            meant = limits.may_be_meant(last_step - level.raised, changed_step)
            level = _higher(level, now, crowd, step_ns, fresh_s, limits, meant)
        levels[name] = level
    return levels


def _learned(level: Level, now: float, crowd: float) -> Level:
    usual = (1 - LEARNS) * level.usual_ns + LEARNS * now
    return Level(usual, (1 - LEARNS) * level.crowd + LEARNS * crowd)


def _calm(level: Level) -> Level:
    return Level(level.usual_ns, level.crowd)


def _higher(
    level: Level,
    now: float,
    crowd: float,
    step_ns: float,
    fresh_s: Sequence[float],
    limits: SlowLimits,
    meant: bool,
) -> Level:
    longer = now - level.usual_ns
    explained = _explained_ns(level, crowd, step_ns)
    if now >= RAISED * level.usual_ns and longer - explained >= RAISED_SHARE * step_ns:
        raised, raised_s = level.raised + len(fresh_s), level.raised_s + sum(fresh_s)
        suspect = level.suspect + len(fresh_s) if meant else 0
    else:
        raised, raised_s, suspect = 0, 0.0, level.suspect + len(fresh_s)
    if limits.is_usual(suspect, raised, raised_s):
        return Level(now, crowd)
    return replace(level, suspect=suspect, raised=raised, raised_s=raised_s)


def slow_transfers(
    windows: Sequence[RankWindow], levels: Mapping[str, Level], step_s: float
) -> list[Finding]:
    """The group or pair whose transfers take most of what they all take longer, if it has lasted."""
    told = {name for name, level in levels.items() if level.told}
    now = transfer_times(windows) if told else {}
    longer = {name: now[name] - levels[name].usual_ns for name in told & now.keys()}
    if not longer:
        return []
    worst = max(longer, key=lambda name: (longer[name], name))
    usual_s = levels[worst].usual_ns / 1e9
    change = words.change(usual_s, now[worst] / 1e9)
    inputs: dict[str, float | str] = {"usual_s": usual_s, "step_s": step_s}
    sentence = f"transfers {where(windows, worst)} went from {change} in a step of {words.lasting(step_s)}"
    return [say(windows, worst, sentence, longer[worst], inputs)]


def where(windows: Sequence[RankWindow], name: str) -> str:
    return name if name in {between(p) for p in delays_from_training(windows)} else f"in group {name}"


def say(
    windows: Sequence[RankWindow],
    name: str,
    sentence: str,
    longer_ns: float,
    inputs: Mapping[str, float | str],
) -> Finding:
    """The sentence with all that belongs to it."""
    pair = {between(p): p for p in delays_from_training(windows)}.get(name, ())
    members = tuple(sorted(w.rank for w in windows if any(g.name == name for g in w.groups)))
    return Finding(
        kind="communication-slow",
        ranks=tuple(sorted(pair)),
        sentence=f"{sentence}; `loom probe` can find which of its links",
        confidence=0.8,
        certainty="slowness is reported, never certain",
        ask=pair or members[:32],
        inputs={**inputs, "group": name, "longer_s": longer_ns / 1e9},
    )
