"""Replicas that should be equal and are not: hashes of parts of their parameters after the same step.

Nobody tells which ranks hold the same parameters, so it is learned: ranks that have agreed on a part, while
it changed, are replicas of each other there. Parts on which ranks never agreed (shards, stages, adapters of
one rank, a job that averages now and then) are never judged. Among replicas, whoever leaves a majority is
named. Without a majority, as between two ranks, it is said only while *other* parts agree after the very
same steps: a flipped bit stays in its part, whereas ranks that train by themselves differ everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Evidence, Finding

AGREED = 2
"""Looks at a part, with a change between them, after which those who agreed are replicas there."""
AGREED_IN_ALL = 8
"""The same over all parts of a table: a job that has hardly begun is not judged."""
MIXED = 3
"""Looks in a row at which a part differs while others agree, before ranks without a majority are said to
differ."""
REMEMBERED = 4096


class Part(Struct, frozen=True, array_like=True):
    """What is known of one part of the parameters."""

    step: int
    ranks: tuple[int, ...]
    together: tuple[int, ...]
    """For each rank the lowest one it agrees with, as learned."""
    hashes: tuple[int, ...]
    agreed: int = 1
    changed: int = 0
    odd: int = 0
    """Looks in a row at which they did not agree as learned."""
    mixed: int = 0
    """Those of them after which other parts did."""
    since: int = 0
    """The step of the first one."""
    now: tuple[int, ...] = ()
    """Who agrees with whom in the last of them."""

    @property
    def settled(self) -> bool:
        return self.agreed >= AGREED and self.changed > 0


class Replicas(Struct, frozen=True):
    """By table and part: plain data, kept by the caller."""

    parts: dict[str, Part] = {}


def compare(windows: Sequence[RankWindow], known: Replicas) -> tuple[Replicas, list[Finding]]:
    """Take in what is new; what is odd now."""
    parts = dict(known.parts)
    looked = _looks(windows)
    for step in sorted({step for step, *_ in looked}):
        _take_step(parts, {(t, p): h for (s, t, p), h in looked.items() if s == step}, step)
    while len(parts) > REMEMBERED:
        del parts[next(iter(parts))]
    if not parts:
        return known, []
    return Replicas(parts), _findings(windows, parts)


def _looks(windows: Sequence[RankWindow]) -> dict[tuple[int, int, int], dict[int, int]]:
    """(step, table, part) → hash by rank, where all ranks of that table have told."""
    found: dict[tuple[int, int, int], dict[int, int]] = {}
    ranks: dict[int, set[int]] = {}
    for window in windows:
        if window.hashes:
            ranks.setdefault(window.hashes[-1].table, set()).add(window.rank)
        for one in window.hashes:
            found.setdefault((one.step, one.table, one.part), {})[window.rank] = one.hash
    return {
        key: by_rank
        for key, by_rank in found.items()
        if len(by_rank) > 1 and set(by_rank) == ranks.get(key[1])
    }


def _take_step(
    parts: dict[str, Part], looked: Mapping[tuple[int, int], Mapping[int, int]], step: int
) -> None:
    """All parts that were hashed after one step."""
    odd: list[str] = []
    calm: set[int] = set()
    for (table, part), by_rank in looked.items():
        name = f"{table}/{part}"
        before = parts.get(name)
        if before is not None and step <= before.step:
            continue
        ranks = tuple(sorted(by_rank))
        hashes = tuple(by_rank[rank] for rank in ranks)
        now = tuple(next(r for r in ranks if by_rank[r] == by_rank[rank]) for rank in ranks)
        # The newest at the end: the oldest are forgotten first.
        parts.pop(name, None)
        if before is None or before.ranks != ranks:
            parts[name] = Part(step, ranks, now, hashes)
        elif now == before.together:
            changed = before.changed + (hashes != before.hashes)
            parts[name] = Part(step, ranks, now, hashes, before.agreed + 1, changed)
            if parts[name].settled:
                calm.add(table)
        elif before.settled and _apart(before.together, now):
            since = before.since or step
            parts[name] = replace(before, step=step, odd=before.odd + 1, since=since, now=now)
            odd.append(name)
        else:
            parts[name] = Part(step, ranks, now, hashes)
    for name in odd:
        if int(name.partition("/")[0]) in calm:
            parts[name] = replace(parts[name], mixed=parts[name].mixed + 1)


def _apart(before: Sequence[int], now: Sequence[int]) -> bool:
    """Whether ranks that agreed do not any more."""
    return any(
        before[i] == before[j] and now[i] != now[j]
        for i in range(len(before))
        for j in range(i + 1, len(before))
    )


def _findings(windows: Sequence[RankWindow], parts: Mapping[str, Part]) -> list[Finding]:
    tables: dict[str, list[tuple[str, Part]]] = {}
    for name, part in parts.items():
        tables.setdefault(name.partition("/")[0], []).append((name, part))
    found = []
    for together in tables.values():
        if sum(part.agreed for _, part in together if part.settled) < AGREED_IN_ALL:
            continue
        odd = [(name, part) for name, part in together if part.odd]
        finding = _outvoted(windows, odd) or _at_odds(windows, odd)
        if finding is not None:
            found.append(finding)
    return found


def _outvoted(windows: Sequence[RankWindow], odd: Sequence[tuple[str, Part]]) -> Finding | None:
    """Ranks that most of their replicas disagree with."""
    named: dict[int, list[tuple[str, Part]]] = {}
    for name, part in odd:
        for rank in _minority(part):
            named.setdefault(rank, []).append((name, part))
    if not named:
        return None
    sure = all(len(seen) > 1 or seen[0][1].odd > 1 for seen in named.values())
    ranks = tuple(sorted(named))
    step = min(part.since for seen in named.values() for _, part in seen)
    guilty = [w for w in windows if w.rank in named]
    others = [rank for _, part in odd[:1] for rank in part.ranks if rank not in named]
    have = "has" if len(ranks) == 1 else "have"
    return Finding(
        kind="divergence",
        ranks=ranks,
        node=words.node_of(guilty),
        sentence=f"{words.whom(guilty)} {have} other parameters than {words.ranks_text(others)}, "
        f"at the latest since step {step}",
        confidence=0.98 if sure else 0.9,
        certain=sure,
        certainty="equal parameters have equal hashes" if sure else "it was seen in one look only",
        evidence=_evidence(named),
        inputs={"step": step, "parts": len({name for seen in named.values() for name, _ in seen})},
    )


def _minority(part: Part) -> list[int]:
    """Of every set of replicas that broke up: those who are not with more than half of it."""
    found = []
    for first in set(part.together):
        members = [i for i, lowest in enumerate(part.together) if lowest == first]
        votes: dict[int, int] = {}
        for i in members:
            votes[part.now[i]] = votes.get(part.now[i], 0) + 1
        usual = max(votes, key=lambda lowest: votes[lowest])
        if len(votes) > 1 and 2 * votes[usual] > len(members):
            found += [part.ranks[i] for i in members if part.now[i] != usual]
    return found


def _at_odds(windows: Sequence[RankWindow], odd: Sequence[tuple[str, Part]]) -> Finding | None:
    """Replicas that differ, and nobody can tell who is right."""
    for name, part in odd:
        if part.mixed < MIXED or _minority(part):
            continue
        ranks = tuple(
            rank
            for rank, was in zip(part.ranks, part.together, strict=True)
            if len({n for n, w in zip(part.now, part.together, strict=True) if w == was}) > 1
        )
        guilty = [w for w in windows if w.rank in ranks]
        return Finding(
            kind="divergence",
            ranks=ranks,
            node=words.node_of(guilty),
            sentence=f"{words.ranks_text(ranks)} had equal parameters and differ, at the latest since step "
            f"{part.since}; which of them is right cannot be told",
            confidence=0.9,
            certain=True,
            certainty="equal parameters have equal hashes",
            evidence=_evidence({rank: [(name, part)] for rank in ranks}),
            inputs={"step": part.since, "parts": len(odd)},
        )
    return None


def _evidence(named: Mapping[int, Sequence[tuple[str, Part]]]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            rank,
            f"another hash in part {', '.join(n.partition('/')[2] for n, _ in seen[:8])} of its parameters, "
            f"which was equal in {seen[0][1].agreed} looks before",
        )
        for rank, seen in sorted(named.items())[:16]
    )
