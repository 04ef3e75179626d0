"""Replicas that should be equal and are not: hashes of parts of their parameters after the same step.

No script reports which ranks hold the same parameters, so it is learned: ranks that have agreed on a part,
while it changed, are replicas of each other there. Parts on which ranks never agreed (shards, stages,
adapters of one rank, a job that averages now and then) are never judged. Among replicas, a rank that leaves
the majority is named. Without a majority, as between two ranks, it is reported only while *other* parts
agree after the very same steps: a flipped bit stays in its part, whereas ranks that train by themselves
differ everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.board import WindowBoard
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
ALL: tuple[int, ...] = ()
NOBODY: tuple[int, ...] = (-1,)
"""The two usual cases need no list of thousands of ranks."""


class ParameterPart(Struct, frozen=True, array_like=True):
    """What is known of one part of the parameters."""

    step: int
    together: tuple[int, ...]
    """For each rank the place of the first one it agrees with, as learned; in short, `ALL` or `NOBODY`."""
    digest: int
    """Of all hashes."""
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


class ReplicaMemory(Struct, frozen=True):
    """Plain data, kept by the caller."""

    parts: dict[str, ParameterPart] = {}
    """By table and part."""
    ranks: dict[str, tuple[int, ...]] = {}
    """By table, the ranks that last reported it."""
    judged: dict[str, int] = {}
    """By table, the newest step that was looked at."""


def compare(windows: Sequence[RankWindow], known: ReplicaMemory) -> tuple[ReplicaMemory, list[Finding]]:
    """Take in what is new; what is odd now."""
    parts, ranks = dict(known.parts), dict(known.ranks)
    looked = _looks(windows, known.judged)
    judged = known.judged | {str(table): step for step, table, _ in sorted(looked)}
    for (_, table, _), by_rank in looked.items():
        who = tuple(sorted(by_rank))
        if ranks.get(str(table)) != who:
            ranks[str(table)] = who
            parts = {name: part for name, part in parts.items() if _table(name) != str(table)}
    for step in sorted({step for step, *_ in looked}):
        _take_step(parts, {(t, p): h for (s, t, p), h in looked.items() if s == step}, step)
    while len(parts) > REMEMBERED:
        del parts[next(iter(parts))]
    if not parts:
        return known, []
    return ReplicaMemory(parts, ranks, judged), _findings(windows, parts, ranks)


def _table(name: str) -> str:
    return name.partition("/")[0]


def _looks(
    windows: Sequence[RankWindow], judged: Mapping[str, int]
) -> dict[tuple[int, int, int], dict[int, int]]:
    """(step, table, part) → hash by rank, of new steps, where all ranks of that table have reported."""
    board = WindowBoard.of(windows)
    if all(step <= judged.get(str(table), 0) for table, step in board.newest_hashes().items()):
        return {}  # some rank of each has reported nothing new
    found: dict[tuple[int, int, int], dict[int, int]] = {}
    ranks: dict[int, set[int]] = {}
    until: dict[int, int] = {}
    for rank, hashes in board.hashes():
        table = hashes[-1].table
        if table not in ranks:
            ranks[table], until[table] = set(), judged.get(str(table), 0)
        ranks[table].add(rank)
        done = until[table]
        for one in reversed(hashes):
            if one.step <= done:
                break
            found.setdefault((one.step, one.table, one.part), {})[rank] = one.hash
    return {
        key: by_rank
        for key, by_rank in found.items()
        if len(by_rank) > 1 and set(by_rank) == ranks.get(key[1])
    }


def _agreement(hashes: Sequence[int]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    labels = tuple(first.setdefault(value, place) for place, value in enumerate(hashes))
    return ALL if len(first) == 1 else NOBODY if len(first) == len(hashes) else labels


def _labels(together: tuple[int, ...], count: int) -> Sequence[int]:
    return [0] * count if together == ALL else range(count) if together == NOBODY else together


def _take_step(
    parts: dict[str, ParameterPart], looked: Mapping[tuple[int, int], Mapping[int, int]], step: int
) -> None:
    """All parts that were hashed after one step."""
    odd: list[str] = []
    calm: set[str] = set()
    for (table, part), by_rank in looked.items():
        name = f"{table}/{part}"
        before = parts.get(name)
        if before is not None and step <= before.step:
            continue
        hashes = [by_rank[rank] for rank in sorted(by_rank)]
        now, digest = _agreement(hashes), sum(hashes)
        # The newest at the end: the oldest are forgotten first.
        parts.pop(name, None)
        if before is None:
            parts[name] = ParameterPart(step, now, digest)
        elif now == before.together:
            changed = before.changed + (digest != before.digest)
            parts[name] = ParameterPart(step, now, digest, before.agreed + 1, changed)
            if parts[name].settled:
                calm.add(_table(name))
        elif before.settled and _apart(before.together, now, len(hashes)):
            since = before.since or step
            parts[name] = replace(before, step=step, odd=before.odd + 1, since=since, now=now)
            odd.append(name)
        else:
            parts[name] = ParameterPart(step, now, digest)
    for name in odd:
        if _table(name) in calm:
            parts[name] = replace(parts[name], mixed=parts[name].mixed + 1)


def _apart(before: tuple[int, ...], now: tuple[int, ...], count: int) -> bool:
    """Whether ranks that agreed do not any more."""
    seen: dict[int, int] = {}
    pairs = zip(_labels(before, count), _labels(now, count), strict=True)
    return any(seen.setdefault(was, label) != label for was, label in pairs)


def _findings(
    windows: Sequence[RankWindow], parts: Mapping[str, ParameterPart], ranks: Mapping[str, tuple[int, ...]]
) -> list[Finding]:
    tables: dict[str, list[tuple[str, ParameterPart]]] = {}
    for name, part in parts.items():
        tables.setdefault(_table(name), []).append((name, part))
    found = []
    for table, together in tables.items():
        if sum(part.agreed for _, part in together if part.settled) < AGREED_IN_ALL:
            continue
        odd = [(name, part) for name, part in together if part.odd]
        finding = _outvoted(windows, odd, ranks[table]) or _at_odds(windows, odd, ranks[table])
        if finding is not None:
            found.append(finding)
    return found


def _outvoted(
    windows: Sequence[RankWindow], odd: Sequence[tuple[str, ParameterPart]], ranks: tuple[int, ...]
) -> Finding | None:
    """Ranks that most of their replicas disagree with."""
    named: dict[int, list[tuple[str, ParameterPart]]] = {}
    for name, part in odd:
        for rank in _minority(part, ranks):
            named.setdefault(rank, []).append((name, part))
    if not named:
        return None
    sure = all(len(seen) > 1 or seen[0][1].odd > 1 for seen in named.values())
    step = min(part.since for seen in named.values() for _, part in seen)
    guilty = [w for w in windows if w.rank in named]
    others = [rank for rank in ranks if rank not in named]
    have = "has" if len(named) == 1 else "have"
    return Finding(
        kind="divergence",
        ranks=tuple(sorted(named)),
        node=words.node_of(guilty),
        sentence=f"{words.whom(guilty)} {have} other parameters than {words.ranks_text(others)}, "
        f"at the latest since step {step + words.offset_of(windows)}",
        confidence=0.98 if sure else 0.9,
        certain=sure,
        certainty="equal parameters have equal hashes" if sure else "it was seen in one look only",
        evidence=_evidence(named),
        inputs={"step": step, "parts": len({name for seen in named.values() for name, _ in seen})},
    )


def _minority(part: ParameterPart, ranks: tuple[int, ...]) -> list[int]:
    """Of every set of replicas that broke up: those who are not with more than half of it."""
    found: list[int] = []
    sets: dict[int, dict[int, list[int]]] = {}
    pairs = zip(ranks, _labels(part.together, len(ranks)), _labels(part.now, len(ranks)), strict=True)
    for rank, was, label in pairs:
        sets.setdefault(was, {}).setdefault(label, []).append(rank)
    for votes in sets.values():
        usual = max(votes.values(), key=len)
        if len(votes) > 1 and 2 * len(usual) > sum(map(len, votes.values())):
            found += [rank for some in votes.values() if some is not usual for rank in some]
    return found


def _at_odds(
    windows: Sequence[RankWindow], odd: Sequence[tuple[str, ParameterPart]], everybody: tuple[int, ...]
) -> Finding | None:
    """Replicas that differ, and nothing shows which is right."""
    for name, part in odd:
        if part.mixed < MIXED or _minority(part, everybody):
            continue
        count = len(everybody)
        was, now = _labels(part.together, count), _labels(part.now, count)
        broken = {w for w in set(was) if len({n for n, v in zip(now, was, strict=True) if v == w}) > 1}
        ranks = tuple(rank for rank, w in zip(everybody, was, strict=True) if w in broken)
        these = set(ranks)
        guilty = [w for w in windows if w.rank in these]
        return Finding(
            kind="divergence",
            ranks=ranks,
            node=words.node_of(guilty),
            sentence=f"{words.ranks_text(ranks)} had equal parameters and differ, at the latest since step "
            f"{part.since}; which of them is right is unknown",
            confidence=0.9,
            certain=True,
            certainty="equal parameters have equal hashes",
            evidence=_evidence({rank: [(name, part)] for rank in ranks}),
            inputs={"step": part.since, "parts": len(odd)},
        )
    return None


def _evidence(named: Mapping[int, Sequence[tuple[str, ParameterPart]]]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            rank,
            f"another hash in part {', '.join(n.partition('/')[2] for n, _ in seen[:8])} of its parameters, "
            f"which was equal in {seen[0][1].agreed} looks before",
        )
        for rank, seen in sorted(named.items())[:16]
    )
