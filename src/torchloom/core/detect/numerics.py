"""Numbers that went wrong: NaN and Inf, spikes of loss or gradient norm, replicas that diverged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite, log

from msgspec import Struct

from torchloom.core.detect import words
from torchloom.core.detect.robust import median, spread
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Finding

HISTORY = 64
WARM = 16
SCORE = 6.0
TIMES = 5.0
LEAST = 1.5
"""A value below this many times the usual is no spike, however quiet the curve was."""
WATCHED = ("loss", "grad_norm")


class Curves(Struct, frozen=True):
    """The newest values of each watched metric: plain data, kept by the caller."""

    values: dict[str, tuple[float, ...]] = {}
    last_step: int = 0


def broken_values(windows: Sequence[RankWindow]) -> list[Finding]:
    """NaN or Inf in any metric of any rank, at once."""
    bad = {w.rank: sorted(k for k, v in w.values.items() if not isfinite(v)) for w in windows}
    guilty = [w for w in windows if bad[w.rank]]
    if not guilty:
        return []
    names = sorted({name for w in guilty for name in bad[w.rank]})
    # A reduced loss is broken everywhere at once: then nobody can be named.
    everywhere = len(guilty) == len(windows) > 1
    step = min(w.steps_done for w in guilty)
    return [
        Finding(
            kind="not-a-number",
            ranks=() if everywhere else tuple(sorted(w.rank for w in guilty)),
            node="" if everywhere else words.node_of(guilty),
            sentence=f"{', '.join(names)} of {words.whom(guilty)} is not a finite number at step {step}",
            confidence=0.99,
            certain=True,
            certainty="it is not a number",
            inputs={"step": step},
        )
    ]


def spikes(curves: Curves, step: int, values: Mapping[str, float]) -> tuple[Curves, list[Finding]]:
    """Take the newest values (medians over ranks) of a step in."""
    if step <= curves.last_step:
        return curves, []
    kept = dict(curves.values)
    found = []
    for name in WATCHED:
        value = values.get(name)
        if value is None or not isfinite(value):
            continue
        past = kept.get(name, ())
        finding = _spike(name, step, value, past)
        if finding is not None:
            found.append(finding)
        # Spikes are learned too: medians ignore a few, and a level that stays is the new usual one.
        kept[name] = (*past, value)[-HISTORY:]
    return Curves(kept, step), found


def _spike(name: str, step: int, value: float, past: Sequence[float]) -> Finding | None:
    if len(past) < WARM or value <= 0 or min(past) <= 0:
        return None  # a loss that may be negative has no natural scale, so nothing is said about it
    logs = [log(v) for v in past]
    centre = median(logs)
    over = log(value) - centre
    score = over / max(spread(logs, centre), 0.02)
    if over < log(LEAST) or (score <= SCORE and over < log(TIMES)):
        return None
    return Finding(
        kind="spike",
        ranks=(),
        sentence=f"{name} jumped to {value:.4g} at step {step}, {value / median(past):.1f}× its usual value",
        confidence=0.7 if over < log(TIMES) else 0.9,
        certainty="a spike may pass by itself",
        inputs={"step": step, "score": score, "times": value / median(past)},
    )


def divergence(windows: Sequence[RankWindow]) -> list[Finding]:
    """Replicas whose parameters differ after the same step. The smaller part is to blame, if there is one."""
    shards: dict[str, list[RankWindow]] = {}
    for window in windows:
        if window.parameter_hash:
            shards.setdefault(window.parameter_hash.rpartition(":")[0], []).append(window)
    found = []
    for shard, together in shards.items():
        votes = Counter(w.parameter_hash for w in together)
        if len(votes) < 2:
            continue
        (usual, most), (_, second) = votes.most_common(2)
        odd = [w for w in together if most == second or w.parameter_hash != usual]
        found.append(
            Finding(
                kind="divergence",
                ranks=tuple(sorted(w.rank for w in odd)),
                node=words.node_of(odd),
                sentence=f"{words.whom(odd)} had other parameters than the other replicas "
                f"after step {shard.partition(':')[0]}",
                confidence=0.6 if most == second else 0.95,
                certain=True,
                certainty="equal parameters have equal hashes",
                inputs={"shard": shard, "versions": len(votes)},
            )
        )
    return found
