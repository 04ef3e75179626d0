"""The delay matrix: whether a slow pair is a link, a sender or a receiver.

Model: log d(i→j) = μ + a(i) + b(j) + e(i,j), fitted by median polish, so that one slow link cannot make its
two ends look slow. A sender has a high a, a receiver a high b, a link a high e. Sends nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log

from msgspec import Struct

from torchloom.core.detect import words
from torchloom.core.detect.board import PAIRS, WindowBoard
from torchloom.core.detect.robust import median, spread
from torchloom.core.detect.tournament import Pair
from torchloom.core.detect.window import RankWindow
from torchloom.model.finding_kinds import FindingKind
from torchloom.model.findings import Finding

SLOW = 1.5
"""A part that is less than this much slower than the others is not worth naming."""
SCORE = 6.0
BESIDE = 0.2
"""What takes less than this part of what the worst one takes more is not worth a word beside it."""
TINY = 1e-3
NOISE = 0.05
"""The least spread of logarithms that is believed."""


class Polish(Struct, frozen=True):
    overall: float
    senders: dict[int, float]
    receivers: dict[int, float]
    links: dict[Pair, float]


def delays_from_training(windows: Sequence[RankWindow]) -> dict[Pair, float]:
    """What the job's own sends and receives show, in seconds a step: of a send and the recv it meets, the
    later one waited for the transfer only, so the shorter time is the transfer's. A send that the kernel
    takes into its buffer is shorter still: these are lower bounds, and nobody is blamed for what a rank
    computed."""
    if not WindowBoard.of(windows).marked(PAIRS):
        return {}
    at = {(g.name, g.rank): w.rank for w in windows for g in w.groups}
    sent: dict[Pair, float] = {}
    got: dict[Pair, float] = {}
    for window in windows:
        for pair in window.pairs:
            other = at.get((pair.group, pair.peer))
            if other is None:
                continue
            if pair.send_ns:
                sent[window.rank, other] = pair.send_ns * pair.count / 1e9
            if pair.recv_ns:
                got[other, window.rank] = pair.recv_ns * pair.count / 1e9
    return {key: min(sent[key], got[key]) for key in sorted(sent.keys() & got.keys())}


def polish(delays: Mapping[Pair, float], rounds: int = 12) -> Polish:
    """Median polish of the logarithms; pairs that were not measured are left out."""
    left = {pair: log(max(d, 1e-12)) for pair, d in delays.items() if pair[0] != pair[1]}
    ranks = sorted({r for pair in left for r in pair})
    overall = 0.0
    senders, receivers = dict.fromkeys(ranks, 0.0), dict.fromkeys(ranks, 0.0)
    for _ in range(rounds):
        for part, side in ((senders, 0), (receivers, 1)):
            lines: dict[int, list[float]] = {}
            for pair, value in left.items():
                lines.setdefault(pair[side], []).append(value)
            shift = {rank: median(values) for rank, values in lines.items()}
            left = {pair: value - shift[pair[side]] for pair, value in left.items()}
            for rank, value in shift.items():
                part[rank] += value
            centre = median(list(part.values()))
            overall += centre
            for rank in part:
                part[rank] -= centre
    return Polish(overall, senders, receivers, left)


def judge_links(
    delays: Mapping[Pair, float],
    *,
    names: Mapping[int, str] | None = None,
    what: str = "a transfer",
    floor_s: float = 0.0,
) -> list[Finding]:
    """Slow senders, receivers and links, worst first. Fewer than four ranks are not enough for it.

    `what` takes the delays, and what exceeds the others' by less than `floor_s` is not reported.
    """
    ranks = sorted({r for pair in delays for r in pair})
    known = names or {}
    who = {rank: known.get(rank, f"rank {rank}") for rank in ranks}
    if len(ranks) < 4:
        return _few(delays, who, what, floor_s)
    # Differences below the floor mean nothing, however large their ratio is: added to all, it hides them.
    fit = polish({pair: delay + floor_s for pair, delay in delays.items()})
    usual_s = exp(fit.overall)
    found = []
    sides: tuple[tuple[FindingKind, Mapping[int, float], str], ...] = (
        ("sender-slow", fit.senders, "sends"),
        ("receiver-slow", fit.receivers, "receives"),
    )
    for kind, effects, side in sides:
        noise = max(spread(list(effects.values())), NOISE)
        for rank, value in effects.items():
            if _stands_out(value, noise, usual_s, floor_s):
                subject = f"{who[rank]} {side} slowly"
                found.append(_say(kind, (rank,), subject, what, floor_s, usual_s, value, noise))
    ends = {(finding.kind, rank) for finding in found for rank in finding.ranks}
    # The residuals are mostly zero after a polish, so their spread is taken from the measured noise floor.
    noise = max(spread(list(fit.links.values()), 0.0), NOISE)
    for (a, b), value in sorted(fit.links.items(), key=lambda item: -item[1])[: len(ranks)]:
        base_s = exp(fit.overall + fit.senders[a] + fit.receivers[b])
        # How much slower one of a slow end's links is than another says little: all of them hardly move.
        if not {("sender-slow", a), ("receiver-slow", b)} & ends and _stands_out(
            value, noise, base_s, floor_s
        ):
            subject = f"the link from {who[a]} to {who[b]} is slow"
            found.append(_say("link-slow", (a, b), subject, what, floor_s, base_s, value, noise))
    worst_s = max((_excess_s(finding) for finding in found), default=0.0)
    found = [finding for finding in found if _excess_s(finding) >= BESIDE * worst_s]
    return sorted(found, key=lambda f: -float(f.inputs["times"]))


def _excess_s(finding: Finding) -> float:
    return float(finding.inputs["takes_s"]) - float(finding.inputs["usual_s"])


def _stands_out(value: float, noise: float, usual_s: float, floor_s: float) -> bool:
    return value > log(SLOW) and value / noise > SCORE and usual_s * (exp(value) - 1) >= floor_s


def _say(
    kind: FindingKind,
    ranks: tuple[int, ...],
    subject: str,
    what: str,
    floor_s: float,
    base_s: float,
    value: float,
    noise: float,
) -> Finding:
    usual_s = max(base_s - floor_s, base_s * TINY)
    takes_s = base_s * exp(value) - floor_s
    times = takes_s / usual_s
    return Finding(
        kind=kind,
        ranks=tuple(sorted(ranks)),
        sentence=f"{subject}: {what} takes {_time(takes_s)} there and {_time(usual_s)} elsewhere, "
        f"{_times(times)}× as long",
        confidence=0.9,
        certainty="slowness is reported, never certain",
        inputs={"times": times, "score": value / noise, "takes_s": takes_s, "usual_s": usual_s},
    )


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms" if seconds < 0.0095 else words.lasting(seconds)


def _few(delays: Mapping[Pair, float], who: Mapping[int, str], what: str, floor_s: float) -> list[Finding]:
    if len(delays) < 2:
        return []
    (pair, worst), *_ = sorted(delays.items(), key=lambda item: (-item[1], item[0]))
    times = worst / max(1e-12, min(delays.values()))
    if times < 2 * SLOW or worst - min(delays.values()) < floor_s:
        return []
    return [
        Finding(
            kind="communication-slow",
            ranks=tuple(sorted(pair)),
            sentence=f"from {who[pair[0]]} to {who[pair[1]]} {what} takes {_time(worst)}, "
            f"{_times(times)}× the fastest; with so few ranks it may be the link or either end",
            confidence=0.6,
            certainty="slowness is reported, never certain",
            inputs={"times": times},
        )
    ]
