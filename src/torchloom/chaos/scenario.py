"""What happens in a simulated job: its shape, the fault, and everything benign that looks like one."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Literal

FaultKind = Literal[
    "crash",
    "hang",
    "pipeline-hang",
    "left-out-send",
    "stall",
    "desync",
    "deadlock",
    "slow-compute",
    "slow-data",
    "slow-host",
    "slow-link",
    "slow-sender",
    "slow-receiver",
    "imbalance",
    "heavy-rank",
    "slow-all",
    "slow-stage",
    "nan",
    "spike",
    "diverge",
    "skip",
    "never-starts",
]
Stuck = Literal["stopped", "lock", "loop", "read", "disk"]
PauseKind = Literal["eval", "save", "read", "recompile", "sleep", "pool"]

EXPECTED = {
    "crash": {"crash"},
    "hang": {"hang"},
    "pipeline-hang": {"hang"},
    "left-out-send": {"desync"},
    "stall": {"communication-hang"},
    "desync": {"desync"},
    "deadlock": {"ordering-deadlock"},
    "slow-compute": {"compute-slow"},
    "slow-data": {"data-slow"},
    "slow-host": {"host-contention"},
    "slow-link": {"communication-slow"},
    "slow-sender": {"communication-slow"},
    "slow-receiver": {"communication-slow"},
    "imbalance": {"data-imbalance"},
    "heavy-rank": {"data-imbalance"},
    "slow-all": {"global-slowdown"},
    "slow-stage": {"data-imbalance"},
    "nan": {"not-a-number"},
    "spike": {"spike"},
    "diverge": {"divergence"},
    "skip": {"divergence", "desync"},
    "never-starts": {"no-progress"},
}
"""The correct classes of finding for each fault. Probes distinguish links afterwards."""
NAMES_A_RANK = frozenset(
    {
        "crash",
        "hang",
        "pipeline-hang",
        "left-out-send",
        "desync",
        "slow-compute",
        "slow-data",
        "slow-host",
        "heavy-rank",
        "slow-stage",
        "nan",
        "diverge",
        "skip",
    }
)
FOUND_BY_PROBES = {"slow-link": "link-slow", "slow-sender": "sender-slow", "slow-receiver": "receiver-slow"}


@dataclass(frozen=True)
class Parallelism:
    """DP × PP × TP; the rank of (d, p, t) is (d · pp + p) · tp + t."""

    dp: int = 8
    pp: int = 1
    tp: int = 1
    a_node: int = 8
    gpus: bool = True

    @property
    def world(self) -> int:
        return self.dp * self.pp * self.tp

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank // (self.pp * self.tp), rank // self.tp % self.pp, rank % self.tp

    def rank(self, d: int, p: int, t: int) -> int:
        return (d * self.pp + p) * self.tp + t


@dataclass(frozen=True)
class ScenarioFault:
    kind: FaultKind
    rank: int = 0
    step: int = 40
    factor: float = 1.5
    """For slowness: how much longer the rank's work (or the transfer) takes."""
    stuck: Stuck = "lock"
    peer: int = 0
    """The other end of a slow link."""
    also: int = -1
    """A second rank with the same fault at the same step; -1: none."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({self.rank, self.also} - {-1}))


@dataclass(frozen=True)
class Pause:
    """One rank does something unannounced for a while, in the middle of a step."""

    rank: int
    step: int
    seconds: float
    kind: PauseKind


@dataclass(frozen=True)
class Benign:
    """What a healthy job does beside training."""

    noise: float = 0.02
    checkpoint_every: int = 0
    checkpoint_s: float = 3.0
    eval_every: int = 0
    eval_s: float = 20.0
    announced: bool = True
    garbage_every: int = 0
    """Each rank collects garbage about this often (in steps), for 50–300 ms."""
    shared_lengths: float = 0.0
    """Spread of the batch length that all ranks share in a step."""
    own_lengths: float = 0.0
    """Spread of each rank's own length around it."""
    oversubscribed: float = 1.0
    """Runnable threads per core on every node, from the start."""
    pauses: tuple[Pause, ...] = field(default=())


def shapes(chance: random.Random, largest: int = 64) -> Parallelism:
    """A job of 8 ranks or more with a random layout."""
    tp = chance.choice((1, 1, 2, 4))
    pp = chance.choice((1, 1, 2, 4))
    least = max(2 if tp * pp > 4 else 4, 8 // (tp * pp))
    most = max(least, largest // (tp * pp))
    dp = chance.choice([d for d in (2, 4, 8, 16, 32, 64) if least <= d <= most] or [least])
    return Parallelism(dp, pp, tp, gpus=chance.random() < 0.5)


PIPELINES = frozenset({"pipeline-hang", "left-out-send", "slow-stage"})
"""Faults that only a pipeline can have."""


FROM_THE_START = frozenset({"never-starts", "slow-stage"})


def second(fault: ScenarioFault, shape: Parallelism, chance: random.Random) -> ScenarioFault:
    """The same with another rank that has the fault as well, where a rank can have it. Where both of
    two stages are slow from the start, neither is slower than the other: then it is the same stage."""
    also = (fault.rank + 1 + chance.randrange(shape.world - 1)) % shape.world
    if fault.kind == "slow-stage":
        d, p, t = shape.place(fault.rank)
        far = chance.randrange(1, shape.pp) if shape.pp > 2 else 0
        also = shape.rank((d + 1) % shape.dp, (p + far) % shape.pp, t)
    if fault.kind in ("slow-data", "left-out-send"):
        d, _, t = shape.place(also)
        also = shape.rank(d, shape.place(fault.rank)[1], t)
        if also == fault.rank:
            also = (also + shape.pp * shape.tp) % shape.world  # the same place of the next replica
    return replace(fault, also=also)


def faults(kind: FaultKind, shape: Parallelism, chance: random.Random) -> ScenarioFault:
    rank = chance.randrange(shape.world)
    d, p, t = shape.place(rank)
    if kind == "slow-data":
        rank, p = shape.rank(d, 0, t), 0  # only the first stage reads data
    if kind == "left-out-send":
        p = min(p, shape.pp - 2)  # the last stage sends nothing on
        rank = shape.rank(d, p, t)
    peer = shape.rank((d + 1) % shape.dp, p, t)
    factor = chance.uniform(1.3, 2.5)
    if kind in FOUND_BY_PROBES:
        factor = chance.uniform(6, 15)
    ways: tuple[Stuck, ...] = ("stopped", "lock", "loop", "read", "disk")
    stuck = chance.choice(ways)
    step = 0 if kind in FROM_THE_START else chance.randrange(40, 60)
    return ScenarioFault(kind, rank, step, factor, stuck, peer)


def healthy(chance: random.Random, shape: Parallelism, steps: int, pauses: int = 2) -> Benign:
    """A random mixture of everything benign over `steps` steps."""
    kinds: tuple[PauseKind, ...] = ("eval", "save", "read", "recompile", "sleep", "pool")
    return Benign(
        noise=chance.uniform(0.01, 0.04),
        checkpoint_every=chance.choice((0, 25, 50)),
        checkpoint_s=chance.uniform(0.5, 5),
        eval_every=chance.choice((0, 60)),
        eval_s=chance.uniform(3, 60),
        announced=chance.random() < 0.5,
        garbage_every=chance.choice((0, 30)),
        shared_lengths=chance.choice((0.0, 0.2)),
        own_lengths=chance.choice((0.0, 0.03)),
        oversubscribed=chance.choice((1.0, 1.0, 2.0)),
        pauses=tuple(
            Pause(
                rank=chance.randrange(shape.world),
                step=chance.randrange(30, max(31, steps)),
                seconds=chance.uniform(3, 60),
                kind=chance.choice(kinds),
            )
            for _ in range(pauses)
        ),
    )
