"""Hangs, desyncs and deadlocks, each beside what looks like one and is none.

Over 400 lines, because these cases are read against each other: a change of one rule shows in its neighbours.
"""

from __future__ import annotations

import pytest
from detect_windows import PACE, SECOND, missing, reduce, waiting, window
from msgspec.structs import replace

from torchloom.core.detect.crash import crashes, lost_nodes
from torchloom.core.detect.desync import desync
from torchloom.core.detect.hang import hangs
from torchloom.core.detect.thresholds import Pace, StuckLimits, with_pause
from torchloom.core.detect.window import Collective, GroupPosition, ProcessFacts, RankWindow
from torchloom.model.findings import Finding

LIMITS = StuckLimits()


def one(windows: list[RankWindow], pace: Pace = PACE) -> Finding:
    found = hangs(windows, pace, LIMITS)
    assert len(found) == 1, found
    return found[0]


def test_the_absent_rank_is_named_with_place_and_waiters() -> None:
    culprit = missing(3, location="tokenize() at data.py:88")
    found = one([waiting(0), waiting(1), waiting(2), culprit])
    assert found.sentence == (
        "rank 3 on node b has not entered all_reduce #11 of group dp for 2.4 s; "
        "it is in tokenize() at data.py:88; ranks 0–2 wait"
    )
    assert (found.kind, found.ranks, found.waiting) == ("hang", (3,), (0, 1, 2))
    assert not found.certain and not found.may_act and found.ask == (3,)


def test_before_the_limit_nothing_is_said() -> None:
    windows = [*(waiting(r, for_s=1.9) for r in range(3)), missing(3, for_s=1.9)]
    assert hangs(windows, PACE, LIMITS) == []
    slow_job = Pace(steps=500, recent_s=(2.0,) * 100)
    windows = [*(waiting(r, for_s=5.9) for r in range(3)), missing(3, for_s=5.9)]
    assert hangs(windows, slow_job, LIMITS) == []


def test_a_stopped_process_is_certain() -> None:
    found = one([waiting(0), waiting(1), waiting(2), missing(3, state="T")])
    assert found.certain and found.may_act and "stopped (SIGSTOP)" in found.sentence


def test_a_traced_process_is_not() -> None:
    assert not one([waiting(0), waiting(1), waiting(2), missing(3, state="t")]).certain


def frozen(for_s: float, waits_on: str, samples: int = 100) -> RankWindow:
    return missing(
        3, for_s, state="S", waits_on=waits_on, location="f() at x.py:1",
        unchanged_ns=round(for_s * SECOND), unchanged_samples=samples,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("for_s", "waits_on", "samples", "certain"),
    [
        (9.0, "lock", 9, False),
        (11.0, "lock", 11, True),
        (11.0, "lock", 3, False),
        (60.0, "outside", 60, False),
        (60.0, "timer", 60, False),
        (60.0, "unknown", 60, False),
        (95.0, "outside", 95, False),
        (1000.0, "outside", 1000, False),
    ],
)
def test_a_frozen_process_is_certain_only_when_nothing_outside_may_wake_it(
    for_s: float, waits_on: str, samples: int, certain: bool
) -> None:
    found = one([*(waiting(r, for_s=for_s) for r in range(3)), frozen(for_s, waits_on, samples)])
    assert found.certain is certain


def test_a_pause_that_ended_by_itself_raises_the_limits_for_its_place() -> None:
    pace = with_pause(PACE, "f() at x.py:1", 80.0)
    windows = [*(waiting(r, for_s=100) for r in range(3)), frozen(100, "lock")]
    assert one(windows).certain
    assert hangs(windows, pace, LIMITS) == []


def still(for_s: float, rank: int = 3, **facts: object) -> RankWindow:
    """A rank that does not come and was sampled all the time without a sign of life."""
    return missing(rank, for_s, **{"quiet_ns": round(for_s * SECOND), "unchanged_samples": 1, **facts})


def timeout(windows: list[RankWindow], timeout_s: float) -> list[RankWindow]:
    """The same ranks, in a process group with this timeout."""
    return [replace(w, groups=tuple(replace(g, timeout_s=timeout_s) for g in w.groups)) for w in windows]


def test_uncertain_evidence_is_not_acted_on_before_the_process_group_would_give_up() -> None:
    for for_s, timeout_s, acted in (
        (601, 0.0, False),
        (1801, 0.0, True),
        (601, 600.0, True),
        (601, 1800.0, False),
        (1801, 1800.0, True),
        (1801, 7200.0, False),
    ):
        windows = [*(waiting(r, for_s=for_s) for r in range(3)), still(for_s)]
        found = one(timeout(windows, timeout_s))
        assert (found.may_act, found.certain) == (acted, False), (for_s, timeout_s)


def test_what_the_owner_set_is_followed_whatever_the_process_groups_timeout() -> None:
    told = StuckLimits(hang_act_s=20.0, act_told=True)
    for for_s, acted in ((19, False), (21, True)):
        (found,) = hangs([*(waiting(r, for_s=for_s) for r in range(3)), still(for_s)], PACE, told)
        assert (found.may_act, found.certain) == (acted, False)


@pytest.mark.parametrize(
    "facts",
    [
        {"quiet_ns": 2 * SECOND, "life": "it uses 98 % of a core"},
        {"quiet_ns": 40 * SECOND, "life": "it prints"},
        {"quiet_ns": 0},
        {"state": "t", "tracer": "gdb (pid 77)"},
        {"tracer": "strace (pid 77)"},
        {"tracer": "pdb"},
    ],
)
def test_whoever_shows_life_or_is_debugged_is_never_restarted(facts: dict[str, object]) -> None:
    """Not at the owner's limit, not after the process group's timeout, not after a day."""
    told = StuckLimits(hang_act_s=100.0, act_told=True)
    for limits, for_s in ((told, 101.0), (told, 86400.0), (LIMITS, 86400.0)):
        (found,) = hangs([*(waiting(r, for_s=for_s) for r in range(3)), still(for_s, **facts)], PACE, limits)
        assert found.ranks == (3,) and not found.certain and not found.may_act
        if "tracer" in facts:
            assert str(facts["tracer"]) in found.sentence and str(facts["tracer"]) in found.certainty


def test_the_limit_for_acting_counts_from_the_last_sign_of_life() -> None:
    told = StuckLimits(hang_act_s=100.0, act_told=True)
    for quiet_s, acted in ((50, False), (101, True)):
        late = still(1000, quiet_ns=quiet_s * SECOND, life="it prints")
        (found,) = hangs([*(waiting(r, for_s=1000) for r in range(3)), late], PACE, told)
        assert found.may_act is acted


def test_one_that_shows_life_keeps_all_that_are_missed_from_being_restarted() -> None:
    told = StuckLimits(hang_act_s=100.0, act_told=True)
    windows = [waiting(0, for_s=500), waiting(1, for_s=500), still(500, 2), still(500, 3, quiet_ns=SECOND)]
    (found,) = hangs(windows, PACE, told)
    assert found.ranks == (2, 3) and not found.may_act


def test_a_rank_in_a_debugger_inside_an_operation_is_named_and_let_be() -> None:
    held = waiting(2, for_s=5000, process=ProcessFacts(state="t", tracer="gdb (pid 77)"))
    found = one([waiting(0, for_s=5000), waiting(1, for_s=5000), held, waiting(3, for_s=5000)])
    assert found.kind == "hang" and found.ranks == (2,) and "gdb (pid 77) has stopped it" in found.sentence
    assert not found.certain and not found.may_act


def test_compiling_is_reported_late_and_not_acted_on() -> None:
    for pace in (PACE, Pace(steps=3)):
        for for_s, said in ((123.0, False), (599.0, False), (601.0, True)):
            late = window(3, idle_s=for_s, phase="compiling", process=ProcessFacts(state="R"))
            found = hangs([*(waiting(r, for_s=for_s) for r in range(3)), late], pace, LIMITS)
            assert bool(found) is said and not any(f.may_act or f.certain for f in found)


def test_two_stopped_ranks_are_both_named_wherever_they_stopped() -> None:
    elsewhere = {"location": "load() at data.py:4"}
    absent = [waiting(0), waiting(1), missing(2, state="T"), missing(3, state="T", **elsewhere)]
    inside = [waiting(0), waiting(1), waiting(2, process=ProcessFacts(state="T")), missing(3, state="T")]
    both = [waiting(0), waiting(1), *(waiting(r, process=ProcessFacts(state="T")) for r in (2, 3))]
    for windows in (absent, inside, both):
        found = one(windows)
        assert found.certain and found.may_act and found.ranks == (2, 3) and found.waiting == (0, 1)


def test_two_stopped_ranks_of_two_groups_are_told_together() -> None:
    """0 waits for 1 in one group and 2 for 3 in another."""
    windows = []
    for first, name in ((0, "left"), (2, "right")):
        op = reduce(11, 3.0, group=name)
        windows.append(window(first, idle_s=3, collectives=(op,), groups=groups(first, (name, 2, 0, 11))))
        stopped = ProcessFacts(state="T")
        windows.append(
            window(first + 1, idle_s=3, process=stopped, groups=groups(first + 1, (name, 2, 1, 10)))
        )
    found = one(windows)
    assert found.certain and found.ranks == (1, 3) and found.waiting == (0, 2)


def test_one_stopped_inside_and_one_before_an_operation_of_another_group_are_told_together() -> None:
    windows = []
    for first, name, entered in ((0, "left", 11), (2, "right", 10)):
        op = reduce(11, 3.0, group=name)
        windows.append(window(first, idle_s=3, collectives=(op,), groups=groups(first, (name, 2, 0, 11))))
        inside = (op,) if entered == 11 else ()
        windows.append(
            window(
                first + 1,
                idle_s=3,
                process=ProcessFacts(state="T"),
                collectives=inside,
                groups=groups(first + 1, (name, 2, 1, entered)),
            )
        )
    found = one(windows)
    assert found.certain and found.ranks == (1, 3) and found.waiting == (0, 2)


def test_where_one_is_stopped_the_others_that_do_not_come_are_not_blamed() -> None:
    found = one([waiting(0), waiting(1), missing(2, state="T"), missing(3, location="eval() at x.py:1")])
    assert found.ranks == (2,) and found.certain and "rank 3 did not come either" in found.sentence


@pytest.mark.parametrize("phase", ["control-wait", "paused"])
def test_what_the_control_plane_causes_is_never_a_hang(phase: str) -> None:
    late = window(3, idle_s=5000, phase=phase)
    assert hangs([*(waiting(r, for_s=5000) for r in range(3)), late], PACE, LIMITS) == []


def test_an_announced_phase_has_a_limit_of_its_own() -> None:
    late = window(3, idle_s=50, phase="eval", process=ProcessFacts(state="R"))
    assert hangs([*(waiting(r, for_s=50) for r in range(3)), late], PACE, LIMITS) == []


def test_the_start_has_limits_of_its_own() -> None:
    young = Pace(steps=3)
    windows = [*(waiting(r, for_s=30) for r in range(3)), missing(3, for_s=30)]
    assert hangs(windows, young, LIMITS) == []


def groups(rank: int, *positions: tuple[str, int, int, int]) -> tuple[GroupPosition, ...]:
    return tuple(GroupPosition(name, size, index, entered, 0) for name, size, index, entered in positions)


def test_waiting_is_followed_across_groups_to_its_root() -> None:
    """0 waits in dp for 1, and 1 in tp for 2, which is in nothing."""
    tp = reduce(5, 3.0, group="tp")
    windows = [
        window(0, idle_s=3, collectives=(reduce(11, 3),), groups=groups(0, ("dp", 2, 0, 11))),
        window(1, idle_s=3, collectives=(tp,), groups=groups(1, ("dp", 2, 1, 10), ("tp", 2, 0, 5))),
        window(2, idle_s=3, groups=groups(2, ("tp", 2, 1, 4))),
    ]
    found = one(windows)
    assert found.ranks == (2,) and found.waiting == (0, 1)


def test_a_circle_is_an_ordering_deadlock() -> None:
    other = reduce(5, 3.0, group="tp")
    windows = [
        window(
            0, idle_s=3, collectives=(reduce(11, 3),), groups=groups(0, ("dp", 2, 0, 11), ("tp", 2, 0, 4))
        ),
        window(1, idle_s=3, collectives=(other,), groups=groups(1, ("dp", 2, 1, 10), ("tp", 2, 1, 5))),
    ]
    found = one(windows)
    assert (found.kind, found.ranks, found.certain) == ("ordering-deadlock", (0, 1), True)


def test_a_circle_through_an_asynchronous_operation_is_not_certain() -> None:
    """Rank 1 entered without waiting and computes: rank 0 has every reason to wait for it."""
    other = reduce(5, 3.0, group="tp", waited=False)
    windows = [
        window(
            0, idle_s=3, collectives=(reduce(11, 3),), groups=groups(0, ("dp", 2, 0, 11), ("tp", 2, 0, 4))
        ),
        window(1, idle_s=3, collectives=(other,), groups=groups(1, ("dp", 2, 1, 10), ("tp", 2, 1, 5))),
    ]
    found = one(windows)
    assert found.kind == "hang" and not found.certain


def test_all_in_and_none_done_is_the_communication() -> None:
    found = one([waiting(r) for r in range(4)])
    assert (found.kind, found.ranks, found.certain) == ("communication-hang", (), False)


def pair(op: str, seq: int, peer: int, **change: object) -> Collective:
    return reduce(seq, 3.0, op=op, group="pp", peer=peer, **change)


def test_a_receiver_waits_for_its_sender() -> None:
    old = pair("send", 6, 1, finished_ns=999 * SECOND)
    receiver = window(1, idle_s=3, collectives=(pair("recv", 7, 0),), groups=groups(1, ("pp", 2, 1, 0)))
    sender = window(0, idle_s=3, collectives=(old,), groups=groups(0, ("pp", 2, 0, 0)))
    assert one([sender, receiver]).ranks == (0,)


def test_a_sender_that_has_sent_is_not_blamed() -> None:
    sent = pair("send", 7, 1, waited=False)
    receiver = window(1, idle_s=3, collectives=(pair("recv", 7, 0),), groups=groups(1, ("pp", 2, 1, 0)))
    sender = window(0, idle_s=3, collectives=(sent,), groups=groups(0, ("pp", 2, 0, 0)))
    found = one([sender, receiver])
    assert (found.kind, found.ranks) == ("communication-hang", ())


def test_a_completion_that_nobody_can_see_is_no_wait() -> None:
    blind = reduce(11, 100, completion="none")
    assert hangs([window(0, size=1, collectives=(blind,))], PACE, LIMITS) == []


def test_other_sizes_at_the_same_number_are_a_desync() -> None:
    odd = window(3, entered=11, idle_s=3, collectives=(reduce(11, 3, bytes=8),))
    (found,) = desync([*(waiting(r, for_s=3) for r in range(3)), odd], PACE, LIMITS)
    assert (found.ranks, found.certain) == ((3,), True)
    assert "called all_reduce of 8 bytes float32 as #11 of group dp where ranks 0–2" in found.sentence


@pytest.mark.parametrize(
    ("odd", "usual", "says"),
    [
        ({"reduction": "MAX"}, {"reduction": "SUM"}, "called all_reduce MAX of 4096 bytes float32 as #11"),
        (
            {"op": "broadcast", "peer": 1},
            {"op": "broadcast", "peer": 0},
            "called broadcast of 4096 bytes float32 with root 1 as #11",
        ),
    ],
)
def test_another_root_or_reduction_at_the_same_number_is_a_desync(
    odd: dict[str, object], usual: dict[str, object], says: str
) -> None:
    windows = [
        window(r, entered=11, idle_s=3, collectives=(reduce(11, 3, **(odd if r == 3 else usual)),))
        for r in range(4)
    ]
    (found,) = desync(windows, PACE, LIMITS)
    assert (found.ranks, found.certain) == ((3,), True) and says in found.sentence


def test_two_that_disagree_are_both_named() -> None:
    odd = window(1, size=2, entered=11, idle_s=3, collectives=(reduce(11, 3, op="broadcast"),))
    (found,) = desync([waiting(0, for_s=3, size=2), odd], PACE, LIMITS)
    assert found.ranks == (0, 1) and found.confidence < 0.9


def test_who_has_left_the_operation_already_has_a_say_in_it() -> None:
    """A broadcast ends for one of its ranks before the root notices that another one does not come."""
    done = reduce(11, 3, op="broadcast", peer=0, finished_ns=998 * SECOND)
    root = window(0, size=3, entered=11, idle_s=3, collectives=(reduce(11, 3, op="broadcast", peer=0),))
    past = window(1, size=3, entered=12, idle_s=3, collectives=(reduce(12, 3), done))
    odd = window(2, size=3, entered=11, idle_s=3, collectives=(reduce(11, 3),))
    (found,) = desync([root, past, odd], PACE, LIMITS)
    assert found.ranks == (2,) and found.confidence > 0.9


def test_uneven_sizes_that_end_well_are_nobodys_fault() -> None:
    done = {"finished_ns": 999 * SECOND}
    uneven = [window(r, collectives=(reduce(10, 3, bytes=r, **done),)) for r in range(4)]
    gathers = [
        window(r, entered=11, idle_s=3, collectives=(reduce(11, 3, op="all_to_all", bytes=r),))
        for r in range(4)
    ]
    assert desync(uneven, PACE, LIMITS) == [] and desync(gathers, PACE, LIMITS) == []


def test_survivors_that_lost_their_peer_are_not_the_culprit() -> None:
    dead = window(2, process=ProcessFacts(state="X", died_ns=5))
    after = window(3, process=ProcessFacts(state="X", died_ns=4, connection_lost=True))
    (found,) = crashes([window(0), window(1), dead, after])
    assert found.ranks == (2,) and found.certain and "rank 3 followed" in found.sentence


def test_two_ranks_of_one_host_that_died_of_themselves_are_both_named() -> None:
    dead = [window(r, process=ProcessFacts(state="X", died_ns=5 + r)) for r in (0, 1)]
    after = window(3, process=ProcessFacts(state="X", died_ns=4, connection_lost=True))
    (found,) = crashes([*dead, window(2), after])
    assert found.ranks == (0, 1) and found.certain and found.sentence.startswith("ranks 0 and 1 on node a")
    assert "rank 3 followed" in found.sentence


def test_a_node_that_is_not_heard_is_not_called_dead() -> None:
    (found,) = lost_nodes(["b"], {"a": (0, 1), "b": (2, 3)})
    assert found.ranks == (2, 3) and not found.certain and not found.may_act


def test_a_single_rank_that_stands_still() -> None:
    found = one([missing(0, for_s=31, size=1, location="f() at x.py:1")])
    assert found.kind == "hang" and found.ranks == (0,) and not found.certain


def test_a_short_silence_that_holds_nobody_up_is_not_told() -> None:
    assert hangs([missing(r, for_s=20) for r in range(4)], PACE, LIMITS) == []


@pytest.mark.parametrize("steps", [5, 500])
def test_a_script_that_waits_for_its_checkpoint_store_does_not_hang(steps: int) -> None:
    """`save(wait=True)` gives up by itself, and what becomes of the save is reported as such."""
    pace, eager = Pace(steps=steps, recent_s=(0.3,) * 5), replace(LIMITS, hang_act_s=5.0, act_told=True)
    facts = {
        "unchanged_ns": 500 * SECOND,
        "unchanged_samples": 99,
        "quiet_ns": 500 * SECOND,
        "waits_on": "lock",
    }
    for for_s in (31, 130, 600):
        saving = [replace(missing(r, for_s=for_s, **facts), phase="store-wait") for r in range(4)]
        assert hangs(saving, pace, eager) == []
        assert hangs([*(waiting(r, for_s=for_s) for r in range(3)), saving[3]], pace, eager) == []
    late = replace(missing(3, for_s=700, **facts), phase="store-wait")
    (found,) = hangs([*(waiting(r, for_s=700) for r in range(3)), late], pace, LIMITS)
    assert found.ranks == (3,) and not found.certain and not found.may_act, "longer than it may take"


def test_a_program_of_which_nothing_was_ever_recorded_is_not_judged() -> None:
    other = window(0, idle_s=900, steps_done=0, groups=(), process=ProcessFacts(unchanged_ns=900 * SECOND))
    assert hangs([other], Pace(), LIMITS) == []


def test_frozen_ranks_that_nobody_waits_for_are_acted_on_only_late() -> None:
    frozen = {"unchanged_ns": 1500 * SECOND, "unchanged_samples": 99, "quiet_ns": 1500 * SECOND}
    early = one([missing(0, for_s=1500, size=1, **frozen)])
    assert not early.certain and not early.may_act
    assert one([missing(0, for_s=1801, size=1, **frozen)]).may_act
    assert not one([missing(0, for_s=1801, size=1)]).may_act


def test_a_rank_stopped_inside_an_operation_is_named() -> None:
    stopped = waiting(2, process=ProcessFacts(state="T"))
    found = one([waiting(0), waiting(1), stopped, waiting(3)])
    assert found.certain and found.may_act and found.ranks == (2,) and found.waiting == (0, 1, 3)
    assert "it is stopped (SIGSTOP)" in found.sentence


def test_a_rank_stopped_just_after_an_operation_is_named() -> None:
    """It has recorded the end of its part, but what it sends has not all gone out: seen on loomsim."""
    left = window(2, entered=11, idle_s=2.4, process=ProcessFacts(state="T"))
    found = one([waiting(0), waiting(1), left, waiting(3)])
    assert found.certain and found.may_act and found.ranks == (2,) and found.waiting == (0, 1, 3)
    assert "has left all_reduce #11" in found.sentence and "it is stopped (SIGSTOP)" in found.sentence
    running = one([waiting(0), waiting(1), replace(left, process=ProcessFacts()), waiting(3)])
    assert running.kind == "communication-hang" and "only rank 2 left it" in running.sentence


def test_a_stopped_rank_is_named_though_no_collective_is_recorded() -> None:
    """As with the sampling recorder, which sees no ends: nobody is known to wait."""
    windows = [*(missing(r, for_s=2.4) for r in range(3)), missing(3, for_s=2.4, state="T")]
    found = one(windows)
    assert found.ranks == (3,) and "is stopped (SIGSTOP)" in found.sentence
    assert not found.certain and not found.may_act
    moving = [missing(0, for_s=0.1), *windows[1:]]
    assert hangs(moving, PACE, LIMITS) == []


def test_a_job_of_which_every_process_is_stopped_was_suspended_by_somebody() -> None:
    windows = [waiting(0, process=ProcessFacts(state="T")), missing(1, size=2, state="T")]
    found = one(windows)
    assert not found.certain and not found.may_act and "suspended" in found.sentence


def test_a_stopped_rank_is_told_at_the_start_as_well() -> None:
    windows = [*(waiting(r, for_s=2.5) for r in range(3)), missing(3, for_s=2.5, state="T")]
    assert one(windows, Pace(steps=3)).certain
    windows[3] = missing(3, for_s=2.5)
    assert hangs(windows, Pace(steps=3), LIMITS) == []


def test_a_rank_that_sleeps_is_never_certain_to_hang() -> None:
    """However long it has not changed: a timer will wake it."""
    same = {"unchanged_ns": 300 * SECOND, "unchanged_samples": 99}
    windows = [*(waiting(r, for_s=320) for r in range(3)), missing(3, for_s=320, waits_on="lock", **same)]
    assert one(windows).certain
    windows[3] = missing(3, for_s=320, waits_on="timer", **same)
    assert not one(windows).certain and not one(windows).may_act


def test_a_rank_that_is_seen_to_get_on_is_never_acted_on() -> None:
    windows = [*(waiting(r, for_s=1900) for r in range(3)), still(1900, quiet_ns=1900 * SECOND)]
    assert one(windows).may_act
    windows[3] = replace(windows[3], last_activity_ns=windows[3].taken_ns)
    assert not one(windows).may_act


def in_group(group: str, rank: int, *collectives: Collective, **change: object) -> RankWindow:
    """Of a job whose ranks all use dp, and where only some have used another group."""
    mine = (("dp", 3, rank, 10 if collectives[0].group != "dp" else 11),)
    extra = ((group, 2, rank, 1),) if collectives[0].group == group else ()
    return window(rank, idle_s=3, collectives=collectives, groups=groups(rank, *mine, *extra), **change)


def test_a_barrier_of_a_group_that_no_other_rank_has_used_closes_the_circle() -> None:
    """Which of the others is the second member nobody knows: both of them wait for rank 0."""
    barrier = reduce(1, 3.0, op="barrier", group="pair")
    windows = [in_group("pair", 0, barrier), *(in_group("pair", r, reduce(11, 3)) for r in (1, 2))]
    found = one(windows)
    assert (found.kind, found.ranks, found.certain) == ("ordering-deadlock", (0, 1, 2), True)
    assert "barrier #1 of group pair" in found.sentence and "all_reduce #11 of group dp" in found.sentence


def test_a_rank_that_may_still_come_keeps_that_circle_open() -> None:
    barrier = reduce(1, 3.0, op="barrier", group="pair")
    busy = window(2, idle_s=3, groups=groups(2, ("dp", 3, 2, 10)))
    found = hangs([in_group("pair", 0, barrier), in_group("pair", 1, reduce(11, 3)), busy], PACE, LIMITS)
    assert not any(f.certain or f.kind == "ordering-deadlock" for f in found), found


def test_a_barrier_has_no_type() -> None:
    odd = window(3, entered=11, idle_s=3, collectives=(reduce(11, 3, op="barrier", bytes=0, dtype="none"),))
    (found,) = desync([*(waiting(r, for_s=3) for r in range(3)), odd], PACE, LIMITS)
    assert "called barrier as #11" in found.sentence


def test_two_ranks_that_err_in_different_groups_are_both_named() -> None:
    def of(group: str, rank: int, size: int) -> RankWindow:
        made = reduce(11, 3.0, group=group, bytes=size)
        return window(rank, idle_s=3, collectives=(made,), groups=groups(rank, (group, 3, rank % 3, 11)))

    windows = [of("dp.0", r, 8 if r == 1 else 4096) for r in range(3)]
    windows += [of("dp.1", r, 8 if r == 5 else 4096) for r in range(3, 6)]
    (found,) = desync(windows, PACE, LIMITS)
    assert (found.ranks, found.certain) == ((1, 5), True)
    assert "also rank 5" in found.sentence and found.waiting == (0, 2, 3, 4)


def test_two_circles_are_one_finding() -> None:
    def circle(first: int) -> list[RankWindow]:
        a, b = first, first + 1
        dp, tp = f"dp{first}", f"tp{first}"
        in_dp, in_tp = reduce(11, 3, group=dp), reduce(5, 3, group=tp)
        return [
            window(a, idle_s=3, collectives=(in_dp,), groups=groups(a, (dp, 2, 0, 11), (tp, 2, 0, 4))),
            window(b, idle_s=3, collectives=(in_tp,), groups=groups(b, (dp, 2, 1, 10), (tp, 2, 1, 5))),
        ]

    found = one([*circle(0), *circle(2)])
    assert (found.kind, found.ranks, found.certain) == ("ordering-deadlock", (0, 1, 2, 3), True)


def from_anybody(rank: int, for_s: float = 3.0) -> RankWindow:
    """A rank in a receive from whoever sends, which has no number and no partner."""
    return replace(waiting(rank, for_s=for_s), collectives=(reduce(0, for_s, op="recv (any source)"),))


def test_who_receives_from_anybody_waits_and_is_not_blamed() -> None:
    """Rank 2 has sent to rank 0 and waits until it is taken; rank 0 waits for rank 1, which is elsewhere."""
    sends = replace(waiting(2), collectives=(reduce(11, 3.0, op="send", peer=0),))
    (found,) = hangs([from_anybody(0), missing(1, 3.0), sends, waiting(3)], PACE, StuckLimits())
    assert (found.kind, found.ranks) == ("hang", (1,)) and not found.certain and found.confidence <= 0.5
    assert "has sent nothing to rank 0, which receives from anybody, for 3.0 s" in found.sentence
    assert set(found.waiting) == {0, 2, 3}
    assert all(f.ranks == () for f in hangs([from_anybody(r) for r in range(4)], PACE, StuckLimits()))
