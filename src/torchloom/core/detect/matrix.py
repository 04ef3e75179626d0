"""The delay matrix: which pairs to probe when, and whether a slow pair is a link, a sender or a receiver.

Model: log d(i→j) = μ + a(i) + b(j) + e(i,j), fitted by median polish, so that one slow link cannot make its
two ends look slow. A sender has a high a, a receiver a high b, a link a high e. Sends nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log

from msgspec import Struct

from torchloom.core.detect import words
from torchloom.core.detect.robust import median, spread
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Finding, FindingKind

Pair = tuple[int, int]
SLOW = 1.5
"""A part that is less than this much slower than the others is not worth naming."""
SCORE = 6.0


class Polish(Struct, frozen=True):
    overall: float
    senders: dict[int, float]
    receivers: dict[int, float]
    links: dict[Pair, float]


def schedule(ranks: Sequence[int]) -> list[list[Pair]]:
    """Rounds of a tournament: in each round every rank meets one other, and in n − 1 rounds everybody met."""
    seats: list[int | None] = [*sorted(ranks), *([None] if len(ranks) % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(a, b) for a, b in met if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def delays_from_rings(windows: Sequence[RankWindow]) -> dict[Pair, float]:
    """Delays that training itself shows: of a send and the recv it met, the shorter one is the transfer."""
    at = {(g.name, g.rank): w.rank for w in windows for g in w.groups}
    sent: dict[tuple[str, int, int, int], float] = {}
    got: dict[tuple[str, int, int, int], float] = {}
    for window in windows:
        mine = {g.name: g.rank for g in window.groups}
        for c in window.collectives:
            if c.peer is None or not c.finished_ns or c.group not in mine or c.completion == "none":
                continue
            took = float(c.finished_ns - c.entered_ns)
            if c.op == "send":
                sent[c.group, mine[c.group], c.peer, c.group_seq] = took
            elif c.op == "recv":
                got[c.group, c.peer, mine[c.group], c.group_seq] = took
    pairs: dict[Pair, list[float]] = {}
    for key in sorted(sent.keys() & got.keys()):
        a, b = at.get((key[0], key[1])), at.get((key[0], key[2]))
        if a is not None and b is not None:
            pairs.setdefault((a, b), []).append(min(sent[key], got[key]))
    return {pair: median(values) for pair, values in pairs.items()}


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


def judge_links(delays: Mapping[Pair, float], windows: Sequence[RankWindow] = ()) -> list[Finding]:
    """Slow senders, receivers and links, worst first. Fewer than four ranks cannot tell them apart."""
    ranks = sorted({r for pair in delays for r in pair})
    where = {w.rank: w for w in windows}
    if len(ranks) < 4:
        return _few(delays)
    fit = polish(delays)
    found = [
        *_outstanding("sender-slow", fit.senders, where),
        *_outstanding("receiver-slow", fit.receivers, where),
    ]
    # The residuals are mostly zero after a polish, so their spread is taken from the measured noise floor.
    noise = max(spread(list(fit.links.values()), 0.0), 0.05)
    for (a, b), value in sorted(fit.links.items(), key=lambda item: -item[1])[: len(ranks)]:
        if value > log(SLOW) and value / noise > SCORE:
            found.append(_say("link-slow", (a, b), f"the link from rank {a} to rank {b}", value, noise))
    return sorted(found, key=lambda f: -float(f.inputs["times"]))


def _outstanding(
    kind: FindingKind, effects: Mapping[int, float], where: Mapping[int, RankWindow]
) -> list[Finding]:
    noise = max(spread(list(effects.values())), 0.05)
    found = []
    for rank, value in effects.items():
        if value > log(SLOW) and value / noise > SCORE:
            name = words.who(where[rank]) if rank in where else f"rank {rank}"
            side = "as a sender" if kind == "sender-slow" else "as a receiver"
            found.append(_say(kind, (rank,), f"{name} {side}", value, noise))
    return found


def _say(kind: FindingKind, ranks: tuple[int, ...], what: str, value: float, noise: float) -> Finding:
    return Finding(
        kind=kind,
        ranks=tuple(sorted(ranks)),
        sentence=f"{what} is {exp(value):.1f}× slower than the rest of the matrix explains",
        confidence=0.9,
        certainty="slowness is reported, never certain",
        inputs={"times": exp(value), "score": value / noise},
    )


def _few(delays: Mapping[Pair, float]) -> list[Finding]:
    if len(delays) < 2:
        return []
    (pair, worst), *_ = sorted(delays.items(), key=lambda item: (-item[1], item[0]))
    times = worst / max(1e-12, min(delays.values()))
    if times < 2 * SLOW:
        return []
    return [
        Finding(
            kind="communication-slow",
            ranks=tuple(sorted(pair)),
            sentence=f"from rank {pair[0]} to rank {pair[1]} transfers take {times:.1f}× the fastest; "
            "with so few ranks it may be the link or either end",
            confidence=0.6,
            certainty="slowness is reported, never certain",
            inputs={"times": times},
        )
    ]
