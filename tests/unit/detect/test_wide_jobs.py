"""Large jobs: the rules over arrays give exactly what the plain ones give, and looks stay linear."""

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from torchloom.chaos.wide_job import WideJob, windows
from torchloom.core.detect import wide, wide_board
from torchloom.core.detect.cost import middle_without, per_rank
from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.core.detect.robust import median
from torchloom.core.detect.wide_board import WideBoard
from torchloom.core.detect.window import RankWindow
from torchloom.core.detect.window_blocks import Packing, check
from torchloom.core.detect.window_numbers import whole
from torchloom.model.findings import Finding
from torchloom.model.windows import RefWindow
from torchloom.model.worker import WorkerRef

FEWEST = 40
"""Below this the plain rules take out one rank at a time, which arrays never have to."""


@pytest.fixture
def with_arrays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    assert wide.numpy() is not None
    monkeypatch.setattr(wide, "ARRAYS_FROM", FEWEST)
    yield


def _any_job(seed: int) -> tuple[RankWindow, ...]:
    chance = random.Random(seed)
    job = WideJob(
        ranks=chance.choice((40, 41, 64, 97, 150)),
        seed=seed,
        steps=chance.choice((4, 8, 17, 31, 32)),
        slow=chance.choice((0.0, 0.02, 0.1, 0.25, 0.4, 0.6)),
        factor=chance.choice((1.08, 1.2, 1.5, 3.0)),
        noise=chance.choice((0.001, 0.02, 0.1, 0.4)),
        throttled=chance.choice((0.0, 0.0, 1.0)),
    )
    return tuple(_disturbed(w, chance.random(), chance) for w in windows(job))


def _disturbed(window: RankWindow, kind: float, chance: random.Random) -> RankWindow:
    """On a host without devices, waiting for a core, behind by a step, or slow in every fifth step."""
    if kind < 0.3:
        delay = round(chance.choice((2, 120)) * 1e6 * chance.random())
        facts = replace(window.process, run_delay_ns_per_step=delay)
        return replace(window, device=f"cpu {window.rank}", process=facts)
    if kind < 0.33:
        return replace(window, steps=window.steps[:-1], steps_done=window.steps_done - 1)
    if kind < 0.36:
        longer = tuple(
            replace(s, step_ns=s.step_ns + 500_000_000) if s.step % 5 == 0 else s for s in window.steps
        )
        return replace(window, steps=longer)
    return window


def _judged(some: tuple[RankWindow, ...]) -> tuple[Memory, list[Finding]]:
    return judge(some, Memory(), AllLimits())


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_arrays_find_exactly_what_the_plain_rules_find(
    first: int, monkeypatch: pytest.MonkeyPatch, with_arrays: None
) -> None:
    named = 0
    for seed in range(first, first + 25):
        some = _any_job(seed)
        with_them = _judged(some)
        with monkeypatch.context() as without:
            without.setattr(wide, "ARRAYS_FROM", 10**9)
            plain = _judged(some)
        assert repr(with_them) == repr(plain), f"seed {seed}"
        named += bool(plain[1])
    assert named > 5  # else these jobs show nothing


def test_without_numpy_large_jobs_are_judged_by_the_plain_rules(
    monkeypatch: pytest.MonkeyPatch, with_arrays: None
) -> None:
    some = windows(WideJob(ranks=64, seed=1, slow=0.1))
    expected = _judged(some)
    monkeypatch.setattr(wide, "numpy", lambda: None)
    assert repr(_judged(some)) == repr(expected)
    assert expected[1][0].kind == "compute-slow"


@pytest.mark.parametrize("seed", range(8))
def test_what_each_rank_costs_is_what_it_is_beside_all_others(seed: int) -> None:
    some = windows(WideJob(ranks=9 + seed, seed=seed, slow=0.3))
    found = {one.rank: one for one in per_rank(some)}
    typical = {w.rank: median([s.own_ns for s in w.steps]) for w in some}
    for rank, one in found.items():
        assert one.peers_s == median([t for r, t in typical.items() if r != rank]) / 1e9


def test_the_middle_of_the_others() -> None:
    assert middle_without([5.0], 5.0) is None
    assert middle_without([1.0, 5.0], 5.0) == 1.0
    assert middle_without([1.0, 2.0, 2.0, 9.0], 2.0) == 2.0
    assert middle_without([1.0, 2.0, 4.0, 9.0, 10.0], 1.0) == 6.5


def test_a_look_at_many_slow_ranks_stays_linear() -> None:
    """CPU time of one process beside itself. Eight times the ranks took 40 times as long before."""
    few, many = (windows(WideJob(ranks=ranks, seed=2, slow=0.4)) for ranks in (1024, 8192))
    assert _cpu_s(many) < 20 * _cpu_s(few)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("hang", {"hung": 1.5 / 256, "hung_s": 70.0}),
        ("hang", {"hung": 0.4, "hung_s": 70.0}),
        ("not-a-number", {"broken": 1.5 / 256}),
        ("compute-slow", {"slow": 0.4}),
    ],
)
def test_windows_are_made_of_few_ranks(
    kind: str, change: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of thousands that only wait, hang, or are slow for the same reason, all that counts is in columns."""
    pytest.importorskip("numpy")
    made: list[int] = []

    def counted(skeleton: RankWindow, *rest: Any) -> RankWindow:
        made.append(skeleton.rank)
        return whole(skeleton, *rest)

    monkeypatch.setattr(wide_board, "whole", counted)
    job = WideJob(ranks=256, seed=7, **change)  # type: ignore[arg-type]
    board, agent, memory = WideBoard(job.ranks), Packing(), Memory()
    for _ in range(3):
        _, blocks = agent.pack([RefWindow(WorkerRef("job", w.rank, 1, 1), w) for w in windows(job)])
        for block in blocks:
            board.take(block)
        made.clear()
        memory, found = judge(board, memory, AllLimits())
        (finding,) = found
        assert finding.kind == kind
        named = finding.ranks if kind == "not-a-number" else ()
        assert set(made) <= {0, *named}


def test_a_block_in_which_a_rank_is_in_no_collective_at_all_is_refused() -> None:
    """Nobody sends it, and a look at it would fail: an agent may send anything."""
    job = WideJob(ranks=8, seed=7)
    _, (block,) = Packing().pack([RefWindow(WorkerRef("job", w.rank, 1, 1), w) for w in windows(job)])
    with pytest.raises(ValueError, match="fit together"):
        check(replace(block, inside={0: ()}))


def _cpu_s(some: tuple[RankWindow, ...]) -> float:
    costs = []
    for _ in range(3):
        began = time.process_time()
        _judged(some)
        costs.append(time.process_time() - began)
    return min(costs)
