"""What a window says of a rank's records: one definition for agents, who read black boxes, and the simulator.

Pure: records in, parts of a window out. A test that feeds detectors with windows made here cannot show them
more than a real agent would send.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from torchloom.core.detect.robust import median
from torchloom.core.detect.window import PAIRWISE, ROOTED, waited_ns
from torchloom.model.windows import Collective, PairCount, PairTimes, StepTimes

STEPS_KEPT = 32
UNDER_WAY_AMONG = 64
"""Number of newest records that are searched for those in progress."""
PEERS_AFTER_S = 1.5
"""A rank that has not moved for this long reports its progress with each peer."""

_LONGEST_PERIOD = 64
_MOST_MARKED = 8
K = TypeVar("K", bound=Hashable)


class Recorded(Generic[K]):
    """What the newest steps of one rank have shown. `K` names a group, in whatever way the records do."""

    def __init__(self) -> None:
        self.steps: deque[StepTimes] = deque(maxlen=STEPS_KEPT)
        self._waits: dict[K, deque[int]] = {}
        """How long the newest steps waited in each group."""
        self._pairs: dict[tuple[K, int, str], deque[tuple[int, int]]] = {}
        """Per group, peer and `send` or `recv`: the shortest of each of the newest steps, and how many."""

    @property
    def pairwise(self) -> bool:
        return bool(self._pairs)

    def step(
        self,
        number: int,
        step_ns: int,
        data_wait_ns: int,
        records: Sequence[tuple[K, Collective]],
        places: Mapping[K, int],
    ) -> StepTimes:
        """One completed step with its records. `places` says of which groups the collectives are counted."""
        by_group: dict[K, list[Collective]] = {}
        with_peer: dict[tuple[K, int, str], list[int]] = {}
        for key, one in records:
            if one.op not in PAIRWISE:
                by_group.setdefault(key, []).append(one)
            elif one.completion == "none" or one.failed or not one.began_ns:
                continue
            elif one.peer is not None and one.finished_ns:
                took = one.finished_ns - one.began_ns
                with_peer.setdefault((key, one.peer, one.op), []).append(took)
        for key, some in by_group.items():
            self._waits.setdefault(key, deque(maxlen=STEPS_KEPT)).append(waited_ns(some))
        for whom, took_ns in with_peer.items():
            kept = self._pairs.setdefault(whom, deque(maxlen=STEPS_KEPT))
            kept.append((min(took_ns), len(took_ns)))
        counted = sorted(
            (places[key], some[-1].group_seq)
            for key, some in by_group.items()
            if key in places and all(c.exact and c.group_seq for c in some)
        )
        exact = {at for at, _ in counted}
        sampled = sorted(
            (place, len(some))
            for key, some in by_group.items()
            if (place := places.get(key)) is not None and place not in exact
        )
        marked = [
            (place, one.group_seq if place in exact else -nth, said)
            for key, some in by_group.items()
            if (place := places.get(key)) is not None
            for nth, one in enumerate(some, 1)
            if (said := mark(one))
        ]
        waited = waited_ns(one for _, one in records)
        told = tuple(marked) if len(marked) <= _MOST_MARKED else None
        made = StepTimes(number, step_ns, data_wait_ns, waited, tuple(counted), told, tuple(sampled))
        self.steps.append(made)
        return made

    def bare_step(self, number: int, step_ns: int, data_wait_ns: int, wait_ns: int) -> StepTimes:
        """One of which only the times are known: nothing can be said of its collectives."""
        made = StepTimes(number, step_ns, data_wait_ns, wait_ns, (), None)
        self.steps.append(made)
        return made

    def wait_ns(self, key: K) -> int:
        return _typical(self._waits.get(key, ()))

    def pairs(self, names: Mapping[K, str]) -> tuple[PairTimes, ...]:
        found = []
        for key, peer in dict.fromkeys((key, peer) for key, peer, _ in self._pairs):
            sends, recvs = self._pairs.get((key, peer, "send"), ()), self._pairs.get((key, peer, "recv"), ())
            count = max(_typical(n for _, n in sends), _typical(n for _, n in recvs))
            shortest = _typical(ns for ns, _ in sends), _typical(ns for ns, _ in recvs)
            found.append(PairTimes(names.get(key, ""), peer, *shortest, count))
        return tuple(found)


def mark(one: Collective) -> str:
    """What is special about an operation, beside what most of them are; empty for those."""
    if one.op in ROOTED and one.peer:
        return f"{one.op} {one.reduction}".strip() + f" with root {one.peer}"
    return f"{one.op} {one.reduction}" if one.reduction not in ("", "SUM") else ""


def pair_counts(records: Iterable[Collective], whole: bool) -> tuple[PairCount, ...]:
    """A rank's progress with each peer, from its ring, oldest first. `whole`: nothing was overwritten yet."""
    sent: Counter[tuple[str, int]] = Counter()
    received: Counter[tuple[str, int]] = Counter()
    ahead: dict[tuple[str, int], list[int]] = {}
    for one in records:
        if one.op not in PAIRWISE or one.peer is None or not one.group_seq or not one.exact:
            continue
        pair = one.group, one.peer
        if one.op == "send":
            sent[pair] = max(sent[pair], one.group_seq)
        else:
            received[pair] = max(received[pair], one.group_seq)
            if sent[pair] or whole:
                ahead.setdefault(pair, []).append(sent[pair] - received[pair])
    return tuple(
        PairCount(
            group=group,
            peer=peer,
            sent=sent[group, peer] or (0 if whole else None),
            received=received[group, peer] or (0 if whole else None),
            usual=_expected(ahead.get((group, peer), ())),
        )
        for group, peer in sorted(sent.keys() | received.keys())
    )


def _expected(numbers: Sequence[int]) -> int | None:
    """What the last of these should be: they repeat themselves every step, whatever a step looks like."""
    past = numbers[:-1]
    for period in range(1, min(_LONGEST_PERIOD, len(past) // 3) + 1):
        if all(past[i] == past[i - period] for i in range(period, len(past))):
            return past[-period]
    return None


def _typical(numbers: Iterable[int]) -> int:
    found = list(numbers)
    return round(median(found)) if found else 0
