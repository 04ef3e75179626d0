"""Real ranks measure their links at one step; an injected slow sender, receiver or link is seen there."""

from __future__ import annotations

import itertools
import json

import pytest
from steered import Job, Start

from torchloom.core.links import judge, rows
from torchloom.model.transaction.messages import Kind
from torchloom.model.transaction.operation import How, Outcome
from torchloom.wire.blackbox import FAULT, MAILBOX_AT, MASK, Mailbox

RANKS = range(4)
PAIRS = set(itertools.permutations(RANKS, 2))
names = itertools.count()


def measure(job: Job, **values: object) -> Outcome:
    told = job.outcome(job.ask(Kind.PROBE, dict(values)))
    assert told.how is How.APPLIED, told
    return told


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
    told = measure(job)
    found = rows(told.changed.values())
    assert {(one.sender, one.receiver) for one in found} == PAIRS, told
    assert all(0 < one.delay_s < one.transfer_s < 0.5 for one in found), found
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
    told = measure(job, within_s=3.0)
    delays = transfers(told)
    assert set(delays) == PAIRS
    assert min(delays[pair] for pair in slow) > 3 * max(delays[pair] for pair in PAIRS - slow), delays
    found = judge(rows(told.changed.values()), {})
    assert [(f.kind, f.ranks) for f in found] == [verdict], (found, delays)


def test_slowness_ends_when_its_time_is_over(start: Start) -> None:
    job = start("ddp", world=2)
    job.reach(3)
    inject(job, "slow-sender", (0,), (), duration_s=0.3)
    job.until(lambda: transfers(measure(job))[0, 1] < 0.05)


def test_one_rank_has_no_links(start: Start) -> None:
    job = start("plain", world=1)
    job.reach(2)
    told = job.outcome(job.ask(Kind.PROBE))
    assert told.how is How.NOT_APPLIED and "no links" in told.reason
