"""Before and beside training: process groups that are not made, programs without steps, ranks that left."""

from __future__ import annotations

from detect_windows import PACE, SECOND, missing, reduce, stepping, waiting, window
from msgspec.structs import replace

from torchloom.core.detect.hang import hangs
from torchloom.core.detect.joining import not_joined
from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.core.detect.thresholds import Pace, StuckLimits
from torchloom.core.detect.window import GroupPosition, ProcessFacts, RankWindow
from torchloom.model.findings import Finding

NOTHING: dict[str, object] = {"groups": (), "steps_done": 0}


def joining(rank: int, for_s: float, **change: object) -> RankWindow:
    since = round((1000 - for_s) * SECOND)
    return window(rank, idle_s=for_s, phase="joining", phase_since_ns=since, **{**NOTHING, **change})


def test_a_rank_that_does_not_come_to_init_process_group_is_named() -> None:
    late = window(1, idle_s=31, process=ProcessFacts(location="load() at train.py:5"), **NOTHING)
    windows = [joining(0, 31), late, joining(2, 12)]
    _, (found,) = judge(windows, Memory(), AllLimits())
    assert (found.kind, found.ranks, found.waiting) == ("no-progress", (1,), (0, 2))
    assert found.sentence == (
        "rank 1 on node a has not called init_process_group for 31.0 s; it is in load() at train.py:5; "
        "ranks 0 and 2 wait"
    )
    assert not found.certain and not found.may_act
    assert not_joined([joining(0, 29), late], Pace(), StuckLimits()) == []


def test_a_stopped_rank_that_does_not_come_there_is_certain() -> None:
    stopped = window(1, idle_s=31, process=ProcessFacts(state="T"), **NOTHING)
    (found,) = not_joined([joining(0, 31), stopped], Pace(), StuckLimits())
    assert found.certain and found.may_act


def test_a_rank_that_does_not_call_new_group_is_named() -> None:
    windows = [joining(0, 11, groups=window(0).groups, steps_done=5), missing(1, 11)]
    (found,) = not_joined(windows, PACE, StuckLimits())
    assert found.inputs["report_s"] == 10, "to come to init_process_group may take longer"
    assert found.kind == "hang" and found.ranks == (1,) and "has not called new_group" in found.sentence


def in_new_group(rank: int, size: int, for_s: float = 12.0) -> RankWindow:
    groups = window(rank, size=size).groups
    return joining(rank, for_s, groups=groups, steps_done=60)


def test_the_fewer_of_those_that_make_a_group_and_those_that_reduce_are_to_blame() -> None:
    """One rank left out new_group, or only one called it: each side waits for the other."""
    left_out = [in_new_group(0, 3), in_new_group(1, 3), waiting(2, for_s=12, size=3)]
    (found,) = not_joined(left_out, PACE, StuckLimits())
    assert (found.kind, found.ranks) == ("desync", (2,)) and "rank 2 on node b left out" in found.sentence
    too_many = [in_new_group(0, 3), waiting(1, for_s=12, size=3), waiting(2, for_s=12, size=3)]
    (found,) = not_joined(too_many, PACE, StuckLimits())
    assert (found.kind, found.ranks) == ("desync", (0,)) and "one group too many" in found.sentence
    assert not found.certain and not found.may_act


def test_of_two_it_is_said_that_it_is_one_of_them() -> None:
    windows = [in_new_group(0, 2), waiting(1, for_s=12, size=2)]
    (found,) = not_joined(windows, PACE, StuckLimits())
    assert (found.kind, found.ranks) == ("desync", (0, 1)) and found.confidence < 0.8
    assert found.sentence == (
        "rank 0 on node a waits in new_group and rank 1 waits in all_reduce #11 of group dp for each other "
        "for 12.0 s: one side left out a call or made one too many, and it is not known which"
    )
    assert not_joined([in_new_group(0, 2, 9.0), waiting(1, for_s=12, size=2)], PACE, StuckLimits()) == []


def test_who_is_in_no_collective_is_awaited_in_new_group_as_before() -> None:
    windows = [in_new_group(0, 2, 12.0), missing(1, 12, size=2)]
    (found,) = not_joined(windows, PACE, StuckLimits())
    assert (found.kind, found.ranks) == ("hang", (1,))


def test_all_that_are_in_and_never_come_out_do_not_reach_each_other() -> None:
    (found,) = not_joined([joining(0, 40), joining(1, 31)], Pace(), StuckLimits())
    assert found.kind == "communication-hang" and found.ranks == () and not found.may_act
    assert "all 2 ranks have called init_process_group" in found.sentence
    assert not_joined([joining(0, 40), joining(1, 20)], Pace(), StuckLimits()) == [], "the last came lately"


def running(seconds: int, hang_from: int) -> list[list[RankWindow]]:
    """A program of collectives without an optimizer: one of them a second, until rank 1 comes no more."""
    looks = []
    for second in range(1, seconds):
        done = min(second, hang_from)
        taken = second * SECOND
        both = []
        for rank in (0, 1):
            stuck = second > hang_from and rank == 0
            entered = done + stuck
            groups = (GroupPosition("dp", 2, rank, entered, done),)
            op = (reduce(entered, second - hang_from, now_s=second),) if stuck else ()
            active = round(done * SECOND)
            one = window(
                rank, groups=groups, steps_done=0, taken_ns=taken, last_activity_ns=active, collectives=op
            )
            both.append(replace(one, phase="starting"))  # as the probe calls it until the first step
        looks.append(both)
    return looks


def test_the_pace_of_a_program_without_an_optimizer_is_learned_from_its_collectives() -> None:
    memory, told = Memory(), []
    for second, windows in enumerate(running(60, hang_from=40), 1):
        memory, found = judge(windows, memory, AllLimits())
        told += [(second, f) for f in found]
    assert told, "61 s of silence before"
    second, first = told[0]
    assert 42 <= second <= 46 and (first.kind, first.ranks) == ("hang", (1,)) and not first.certain


def left(rank: int, entered: int = 10) -> RankWindow:
    gone = window(rank, entered=entered, process=ProcessFacts(state="X"))
    return replace(gone, left="exited with code 0 after 41 steps")


def test_a_rank_that_left_and_is_waited_for_is_certain() -> None:
    memory = Memory(pace=PACE)
    _, (found,) = judge([waiting(0), waiting(1), waiting(2), left(3)], memory, AllLimits())
    assert (found.kind, found.ranks, found.waiting) == ("hang", (3,), (0, 1, 2))
    assert found.certain and "it exited with code 0 after 41 steps" in found.sentence


def test_a_rank_that_left_and_is_not_waited_for_is_nobodys_trouble() -> None:
    windows = [*(window(r) for r in range(3)), left(3)]
    assert judge(windows, Memory(pace=PACE), AllLimits())[1] == []
    assert hangs(windows, PACE, StuckLimits()) == []


def slow_one(idle_s: float) -> list[Finding]:
    own = [[0.1] * 32, [0.1] * 32, [0.1] * 32, [0.2] * 32]
    windows = [stepping(r, times, step_s=0.2, idle_s=idle_s) for r, times in enumerate(own)]
    return judge(windows, Memory(), AllLimits())[1]


def test_after_training_has_ended_nobody_is_called_slow() -> None:
    assert [f.ranks for f in slow_one(0.0)] == [(3,)]
    assert slow_one(8.0) == []


def spawning(rank: int, quiet_s: float, **change: object) -> RankWindow:
    """A worker that only waits for the processes it has started."""
    facts = ProcessFacts(state="S", children=2, tree_quiet_ns=round(quiet_s * SECOND))
    return window(rank, idle_s=quiet_s, **{"groups": (), "steps_done": 0, "process": facts, **change})


def test_children_that_show_no_life_are_reported_and_nothing_is_done() -> None:
    _, found = judge([spawning(0, 61), spawning(1, 20)], Memory(), AllLimits())
    (silent,) = found
    assert (silent.kind, silent.ranks, silent.certain, silent.may_act) == ("no-progress", (0,), False, False)
    assert "nor its 2 child processes showed any life for 61.0 s" in silent.sentence and silent.ask == (0,)
    assert judge([spawning(0, 59)], Memory(), AllLimits())[1] == []
    trains = window(0, process=spawning(0, 600).process)
    assert judge([trains], Memory(), AllLimits())[1] == [], "it records steps itself"
