"""A rank that is traced, or that something stops and continues: that is why it is slow, if only a little."""

from __future__ import annotations

from detect_windows import own, stepping
from msgspec.structs import replace

from torchloom.core.detect.attribute import stragglers
from torchloom.core.detect.slow import SlowLimits
from torchloom.core.detect.why_late import traced
from torchloom.model.windows import ProcessFacts, RankWindow

STRACE = ProcessFacts(tracer="strace (pid 4711)")


def job(factor: float, ranks: int = 2, facts: ProcessFacts = STRACE) -> list[RankWindow]:
    """The last rank takes so many times as long, and all differ by a tenth by chance."""
    times = [own(rank, factor if rank == ranks - 1 else 1.0, steps=32, noise=0.1) for rank in range(ranks)]
    windows = [stepping(rank, some, step_s=0.6) for rank, some in enumerate(times)]
    return [*windows[:-1], replace(windows[-1], process=facts)]


def test_a_traced_rank_is_named_with_its_tracer_though_times_alone_would_not_do() -> None:
    for ranks in (2, 3, 4):
        assert stragglers(job(1.09, ranks, ProcessFacts()), SlowLimits()) == []
        windows = job(1.09, ranks)
        (found,) = traced(stragglers(windows, SlowLimits()), windows)
        assert (found.kind, found.ranks) == ("host-contention", (ranks - 1,))
        assert found.sentence.startswith(f"strace (pid 4711) traces rank {ranks - 1} on node")
        assert not found.certain and not found.may_act
        assert found.evidence[0].says == "strace (pid 4711) traces it"


def test_so_is_a_rank_that_something_stops_and_continues() -> None:
    windows = job(1.09, 3, ProcessFacts(stops=5))
    (found,) = stragglers(windows, SlowLimits())
    assert (found.kind, found.ranks) == ("host-contention", (2,))
    assert "something stops and continues it" in found.sentence
    assert found.evidence[0].says.endswith("and it was found stopped in 5 looks")
    assert stragglers(job(1.0, 3, ProcessFacts(stops=5)), SlowLimits()) == []


def test_a_tracer_that_costs_nothing_is_not_worth_a_word() -> None:
    for ranks in (2, 3, 4):
        assert stragglers(job(1.0, ranks), SlowLimits()) == []
