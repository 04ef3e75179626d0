"""Collectives that fail in a job that continues; ranks whose script failed while their process lives on."""

from __future__ import annotations

from detect_windows import PACE, SECOND, missing, waiting
from msgspec.structs import replace

from torchloom.core.detect.failed import AGAIN_S, Reported, failed_collectives
from torchloom.core.detect.hang import hangs
from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.core.detect.thresholds import StuckLimits
from torchloom.core.detect.window import RankWindow
from torchloom.core.policy.reporting import choose, key
from torchloom.model.windows import FailedCollective, QuorumFacts

LIMITS = StuckLimits()


def training(rank: int, *, failed_s: float = 0.0, count: int = 1, at_s: float = 0.0) -> RankWindow:
    """A rank that made steps since one of its collectives failed, so long ago."""
    now = round((1000 + at_s) * SECOND)
    failed = FailedCollective(count, "all_reduce #61 of group eval", now - round(failed_s * SECOND), 60)
    return RankWindow(
        rank=rank,
        node="a",
        taken_ns=now,
        last_activity_ns=now,
        steps_done=200,
        failed=failed if failed_s else None,
    )


def test_a_collective_that_failed_in_a_job_that_continues_is_reported_and_nothing_else() -> None:
    windows = [training(0, failed_s=5), training(1), training(2, failed_s=5)]
    memory, (found,) = judge(windows, Memory(), AllLimits())
    assert (found.kind, found.ranks, found.certain, found.may_act) == (
        "collective-failed",
        (0, 2),
        False,
        False,
    )
    assert found.sentence == (
        "all_reduce #61 of group eval failed on ranks 0 and 2 on node a, and the job continues"
    )
    assert found.traits.default == "report" and found.traits.blames_nobody
    assert key(found) == "collective-failed"
    _, say, _ = choose({}, [found], now_s=0.0, look=0)
    assert say == [found], "it happens once: later looks cannot confirm it"
    assert judge(windows, memory, AllLimits())[1] == [], "and is reported once"


def test_errors_again_and_again_are_reported_every_ten_minutes() -> None:
    known, found = failed_collectives([training(0, failed_s=5)], {}, False)
    assert found and known == {0: Reported(1, 1000 * SECOND)}
    for at_s, count, said in ((1, 2, 0), (AGAIN_S - 1, 50, 0), (AGAIN_S, 51, 1), (AGAIN_S + 9, 60, 0)):
        known, found = failed_collectives([training(0, failed_s=5, count=count, at_s=at_s)], known, False)
        assert len(found) == said
    assert failed_collectives([training(0, failed_s=5, count=60, at_s=9 * AGAIN_S)], known, False)[1]


def test_what_a_death_or_a_stall_explains_or_may_still_explain_is_not_reported() -> None:
    assert failed_collectives([training(0, failed_s=5)], {}, True) == ({}, [])
    assert failed_collectives([training(0, failed_s=3)], {}, False) == ({}, []), "it has only just happened"
    no_step = replace(training(0, failed_s=5), steps_done=61)
    assert failed_collectives([no_step], {}, False) == ({}, [])
    ending = replace(training(0, failed_s=5), phase="ending")
    assert failed_collectives([ending], {}, False) == ({}, [])
    torchft = replace(training(0, failed_s=5), quorum=QuorumFacts(1, 2, 9, 0.0))
    assert failed_collectives([torchft], {}, False) == ({}, []), "its errors belong to other replicas"
    left = replace(training(1), left="exited with code 0")
    assert judge([training(0, failed_s=5), left], Memory(), AllLimits())[1] == []


def test_a_rank_whose_script_failed_is_named_though_a_thread_keeps_its_process_alive() -> None:
    """It is ending, which has a limit of its own otherwise."""
    windows = [waiting(0), waiting(1)]
    ending = replace(missing(2), phase="ending")
    assert hangs([*windows, ending], PACE, LIMITS) == []
    failed = replace(ending, process=replace(ending.process, script_failed="KeyError: 'labels'"))
    (found,) = hangs([*windows, failed], PACE, LIMITS)
    assert found.ranks == (2,) and not found.certain and not found.may_act
    assert "its script has failed (KeyError: 'labels') and a thread keeps its process alive" in found.sentence


def test_it_is_certain_once_that_thread_shows_no_life_either() -> None:
    for quiet_s, life, certain in ((29, "", False), (31, "", True), (5, "it uses 98 % of a core", False)):
        late = missing(2, for_s=60)
        process = replace(
            late.process, script_failed="KeyError", quiet_ns=quiet_s * SECOND, life=life, unchanged_samples=3
        )
        failed = replace(late, phase="ending", process=process)
        (found,) = hangs([waiting(0, for_s=60), waiting(1, for_s=60), failed], PACE, LIMITS)
        assert (found.certain, found.may_act) == (certain, certain)
