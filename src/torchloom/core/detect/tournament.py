"""Who meets whom when every pair of ranks is to be measured. Needs only the standard library: workers use it.

Rounds of a tournament: in each round every rank meets at most one other, so that no two measurements share an
end, and ranks that go through the rounds in order never wait for each other in a circle. Sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[int, int]
SHORTEST_PROBE_S, LONGEST_PROBE_S = 0.05, 30.0
"""The allowed time for a measurement: training is paused meanwhile."""
MOST_ROUNDS = 31
"""In a large job not every pair is measured: this many peers per rank separate ends from links."""


def schedule(ranks: Sequence[int]) -> list[list[Pair]]:
    """In n − 1 rounds (n if it is odd) everybody met."""
    seats: list[int | None] = [*sorted(ranks), *([None] if len(ranks) % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(a, b) for a, b in met if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def partners(rank: int, world: int, most: int = MOST_ROUNDS) -> list[int | None]:
    """Whom `rank` meets in each round, None where it sits one out; rounds evenly chosen from all of them."""
    count = world + world % 2
    rounds = count - 1
    chosen = range(rounds) if rounds <= most else [i * rounds // most for i in range(most)]
    met = [_partner(rank, turn, count) for turn in chosen]
    return [other if other is not None and other < world else None for other in met]


def _partner(rank: int, turn: int, count: int) -> int | None:
    """The same tournament as `schedule`, for one rank: seat 0 stays, the others move on by one each round."""
    if count < 2:
        return None
    ring = count - 1
    if rank == 0:
        return (ring - 1 - turn) % ring + 1
    seat = (rank - 1 + turn) % ring + 1
    opposite = count - 1 - seat
    return 0 if opposite == 0 else (opposite - 1 - turn) % ring + 1
