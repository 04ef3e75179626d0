"""Real ranks measure their links at one step; an injected slow sender, receiver or link is seen there."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest
from steered import Job, Start

from torchloom.core.policy.link_findings import judge, rows
from torchloom.model.transaction.messages import Kind
from torchloom.model.transaction.operation import How, Outcome
from torchloom.wire.blackbox import FAULT, MAILBOX_AT, MASK, Mailbox

RANKS = range(4)
PAIRS = set(itertools.permutations(RANKS, 2))
names = itertools.count()


TRIES = 8
"""Measurements that may be spoilt by whatever else the machine does."""


def measure(job: Job, good: Callable[[Outcome], object] = lambda told: True, **values: object) -> Outcome:
    """One measurement that is good."""
    told: list[Outcome] = []
    while len(told) < TRIES:
        told.append(job.outcome(job.ask(Kind.PROBE, dict(values))))
        if told[-1].how is How.APPLIED and good(told[-1]):
            return told[-1]
    raise AssertionError(told)


def inject(
    job: Job, kind: str, ranks: tuple[int, ...], peers: tuple[int, ...], duration_s: float = 0.0
) -> None:
    """As an agent does it."""
    note = {
        "name": f"fault-{next(names)}",
        "kind": kind,
        "amount": 4.0,
        "duration_s": duration_s,
        "at_step": None,
        "where": "step",
        "seed": 0,
        "peers": peers,
    }
    for rank in ranks:
        view = job.views[rank]
        view.write_blob(FAULT, json.dumps([note]).encode())
        at = MAILBOX_AT // 8 + Mailbox.VERSION
        view.words[at] = view.words[at] + 1 & MASK
    job.more(3)


def transfers(told: Outcome) -> dict[tuple[int, int], float]:
    return {(one.sender, one.receiver): one.transfer_s for one in rows(told.changed.values())}


def test_every_pair_is_measured_and_the_steps_go_on(start: Start) -> None:
    job = start("ddp", world=4)
    job.reach(3)
    told = measure(job, lambda told: set(transfers(told)) == PAIRS)
    assert all(one.delay_s > 0 and one.transfer_s > 0 for one in rows(told.changed.values())), told
    job.more(3)


@pytest.mark.parametrize(
    ("kind", "ranks", "peers", "slow", "verdict"),
    [
        ("slow-sender", (2,), (), {(2, r) for r in RANKS if r != 2}, ("sender-slow", (2,))),
        ("slow-receiver", (0, 1, 2, 3), (1,), {(r, 1) for r in RANKS if r != 1}, ("receiver-slow", (1,))),
        ("slow-link", (3, 0), (0,), {(3, 0)}, ("link-slow", (0, 3))),
    ],
)
def test_an_injected_slowness_is_found_where_it_is(
    start: Start,
    kind: str,
    ranks: tuple[int, ...],
    peers: tuple[int, ...],
    slow: set[tuple[int, int]],
    verdict: tuple[str, tuple[int, ...]],
) -> None:
    job = start("ddp", world=4)
    job.reach(3)
    inject(job, kind, ranks, peers)

    def good(told: Outcome) -> bool:
        delays = transfers(told)
        if set(delays) != PAIRS:
            return False
        found = [(one.kind, one.ranks) for one in judge(rows(told.changed.values()), {})]
        far = min(delays[pair] for pair in slow) > 3 * max(delays[pair] for pair in PAIRS - slow)
        return far and found == [verdict]

    measure(job, good, within_s=3.0)


def test_slowness_ends_when_its_time_is_over(start: Start) -> None:
    job = start("ddp", world=2)
    job.reach(3)
    inject(job, "slow-sender", (0,), (), duration_s=0.3)
    job.until(lambda: transfers(measure(job)).get((0, 1), 1.0) < 0.05)


def test_one_rank_has_no_links(start: Start) -> None:
    job = start("plain", world=1)
    job.reach(2)
    told = job.outcome(job.ask(Kind.PROBE))
    assert told.how is How.NOT_APPLIED and "no links" in told.reason
