"""On a device a rank stands at its oldest unfinished collective, and enqueued is not arrived."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from torchloom.core.detect.attribute import stragglers
from torchloom.core.detect.hang import hangs
from torchloom.core.detect.slow import SlowLimits
from torchloom.core.detect.thresholds import Pace, StuckLimits
from torchloom.core.detect.window import (
    Collective,
    GroupPosition,
    ProcessFacts,
    RankWindow,
    StepTimes,
    waited_ns,
)
from torchloom.model.findings import Finding
from torchloom.model.windows import DeviceFacts, FailedCollective

S = 10**9
NOW = 1000 * S
LIMITS = StuckLimits()
PACE = Pace(steps=200, recent_s=(0.1,) * 100)


def collective(seq: int, entered_s: float, **more: object) -> Collective:
    made = Collective(
        "all_reduce", "dp", seq, 4096, "float32", round(entered_s * S), completion="device-event"
    )
    return replace(made, **more)  # type: ignore[arg-type]


def window(
    rank: int,
    *,
    entered: int,
    finished: int,
    quiet_s: float = 30.0,
    approaching: bool = False,
    head_s: float | None = None,
    state: str = "busy",
    error: str = "",
    process: ProcessFacts | None = None,
    idle_s: float | None = None,
) -> RankWindow:
    """A host that has enqueued `entered` and whose device has finished `finished` of them."""
    under_way = []
    for seq in range(finished + 1, min(entered, finished + 2) + 1):
        head = seq == finished + 1
        at = (head_s if head_s is not None else quiet_s) if head else 0
        arrived = 0 if approaching or not head else NOW - round(at * S)
        under_way.append(
            collective(
                seq,
                (NOW / S) - 60,
                approaching=approaching or not head,
                arrived_ns=arrived,
                head_ns=NOW - round(at * S) if head else 0,
            )
        )
    return RankWindow(
        rank=rank,
        node="n",
        taken_ns=NOW,
        last_activity_ns=NOW - round((quiet_s if idle_s is None else idle_s) * S),
        steps_done=200,
        groups=(GroupPosition("dp", 4, rank, entered, finished),),
        collectives=tuple(under_way),
        process=process or ProcessFacts(state="S"),
        accelerator=DeviceFacts(state, round(quiet_s * S), error),  # type: ignore[arg-type]
    )


def test_a_rank_that_never_enqueued_is_named_though_hosts_are_far_ahead_of_each_other() -> None:
    found = hangs(
        [
            *(window(r, entered=30, finished=9) for r in range(3)),
            window(3, entered=9, finished=9, state="idle"),
        ],
        PACE,
        LIMITS,
    )
    assert [f.ranks for f in found] == [(3,)]
    assert "has not entered all_reduce #10" in found[0].sentence
    assert "its device is idle and waits for it" in found[0].sentence


def test_a_host_that_waits_for_its_stuck_device_is_told_from_one_that_is_stuck_itself() -> None:
    stuck = window(3, entered=9, finished=9, state="busy")
    (found,) = hangs([*(window(r, entered=30, finished=9) for r in range(3)), stuck], PACE, LIMITS)
    assert found.ranks == (3,)
    assert "its device has been busy for 30.0 s without finishing" in found.sentence


def test_a_host_that_blocks_in_a_synchronisation_is_said_to_wait_for_its_device() -> None:
    blocked = ProcessFacts(
        state="S", location="read_loss() at a.py:5", unchanged_samples=3, waits_for="it waits for a lock"
    )
    windows = [window(r, entered=30, finished=9) for r in range(3)]

    def said(state: str, process: ProcessFacts) -> str:
        stuck = window(3, entered=9, finished=9, state=state, process=process)
        return hangs([*windows, stuck], PACE, LIMITS)[0].sentence

    told = said("busy", blocked)
    assert "it waits for its device in read_loss() at a.py:5, its device has been busy for 30.0 s" in told
    assert "lock" not in told
    for other in (
        replace(blocked, waits_on="timer"),
        replace(blocked, state="R", life="it uses 98 % of a core", quiet_ns=1),
    ):
        assert "it is in read_loss() at a.py:5" in said("busy", other)
    assert "it is in read_loss() at a.py:5, its device is idle and waits for it" in said("idle", blocked)


def test_all_have_enqueued_and_one_device_has_not_come() -> None:
    """A stuck kernel: before, this was a communication hang of nobody."""
    windows = [window(r, entered=30, finished=9) for r in range(3)]
    (found,) = hangs([*windows, window(3, entered=12, finished=9, approaching=True)], PACE, LIMITS)
    assert (found.kind, found.ranks, found.waiting) == ("hang", (3,), (0, 1, 2))
    assert "has enqueued all_reduce #10 of group dp, but its device has not reached it" in found.sentence
    assert not found.certain and not found.may_act, "a long kernel looks the same"


def test_all_devices_have_come_so_it_is_the_communication() -> None:
    (found,) = hangs([window(r, entered=30, finished=9) for r in range(4)], PACE, LIMITS)
    assert (found.kind, found.ranks) == ("communication-hang", ())


def test_a_device_that_failed_is_certain() -> None:
    windows = [window(r, entered=30, finished=9) for r in range(3)]
    lost = window(3, entered=12, finished=9, approaching=True, state="failed", error="fell off the bus")
    (found,) = hangs([*windows, lost], PACE, LIMITS)
    assert found.ranks == (3,) and found.certain and found.may_act
    assert "its device failed (fell off the bus)" in found.sentence


def test_a_device_that_failed_is_reported_before_the_pace_of_the_job_is_known() -> None:
    """A device may be lost in its first steps: nothing about a slow start looks like that."""
    windows = [window(r, entered=100, finished=9, quiet_s=5.0) for r in range(3)]
    lost = window(3, entered=61, finished=9, approaching=True, quiet_s=5.0, state="failed", error="lost")
    (found,) = hangs([*windows, lost], Pace(), LIMITS)
    assert found.ranks == (3,) and found.certain
    slow = window(3, entered=61, finished=9, approaching=True, quiet_s=5.0)
    assert hangs([*windows, slow], Pace(), LIMITS) == [], "its first kernels may take long"


def test_hosts_that_are_a_minute_ahead_of_healthy_devices_are_no_hang() -> None:
    """What was enqueued long ago is not late: what counts is since when the device stands at it."""
    windows = [window(r, entered=600, finished=9, quiet_s=0.1, idle_s=5.0) for r in range(4)]
    assert hangs(windows, PACE, LIMITS) == []


def test_a_thread_that_still_reduces_elsewhere_hides_no_stuck_device() -> None:
    """Collectives of another group and stream go on: they are a sign of life, not of progress here."""
    windows = [window(r, entered=30, finished=9, idle_s=0.1) for r in range(3)]
    stuck = window(3, entered=12, finished=9, approaching=True, idle_s=0.1)
    (found,) = hangs([*windows, stuck], PACE, LIMITS)
    assert (found.kind, found.ranks, found.may_act) == ("hang", (3,), False)


def test_the_wait_on_a_device_counts_from_its_arrival() -> None:
    early = collective(1, 1.0, arrived_ns=5 * S, finished_ns=8 * S)
    unknown = collective(2, 1.5, finished_ns=9 * S)
    later = collective(3, 2.0, arrived_ns=20 * S, finished_ns=21 * S)
    assert waited_ns([early, unknown, later]) == 4 * S


def late(device: DeviceFacts, run_delay_ms: int = 0) -> list[RankWindow]:
    """Four ranks whose devices make a step in 100 ms; the one of rank 3 waits for nobody."""
    ms = 10**6
    return [
        RankWindow(
            rank=rank,
            node="n",
            taken_ns=NOW,
            last_activity_ns=NOW,
            steps_done=200,
            steps=tuple(
                StepTimes(n, 100 * ms, 0, (5 if rank == 3 else 45) * ms + n % 3 * ms // 10)
                for n in range(160, 200)
            ),
            groups=(GroupPosition("dp", 4, rank, 200, 200),),
            process=ProcessFacts(state="S", run_delay_ns_per_step=run_delay_ms * ms if rank == 3 else 0),
            accelerator=device if rank == 3 else DeviceFacts("busy", 0, "", 80 * ms, 0.0),
        )
        for rank in range(4)
    ]


def test_a_device_that_computes_longer_is_told_from_one_that_waits_for_its_host() -> None:
    (slow,) = stragglers(late(DeviceFacts("busy", 0, "", 80 * 10**6, 0.0)), SlowLimits())
    assert (slow.kind, slow.ranks) == ("compute-slow", (3,))
    (launches,) = stragglers(late(DeviceFacts("busy", 0, "", 20 * 10**6, 0.5)), SlowLimits())
    assert (launches.kind, launches.ranks) == ("host-contention", (3,))
    assert "its device waits for its host" in launches.sentence


def test_what_delays_a_host_that_is_well_ahead_delays_nobody() -> None:
    ahead = late(DeviceFacts("busy", 0, "", 80 * 10**6, 0.0), run_delay_ms=60)
    (found,) = stragglers(ahead, SlowLimits())
    assert found.kind == "compute-slow"
    close = late(DeviceFacts("busy", 0, "", 1 * 10**6, 0.0), run_delay_ms=60)
    (found,) = stragglers(close, SlowLimits())
    assert found.kind == "host-contention"


def test_a_rank_whose_device_failed_after_its_part_of_the_collective_is_named() -> None:
    """Its own record says that it is done, the others' do not: seen on a busy machine."""
    lost = window(3, entered=10, finished=10, state="failed", error="device lost")
    (found,) = hangs([*(window(r, entered=10, finished=9) for r in range(3)), lost], PACE, LIMITS)
    assert found.ranks == (3,) and found.certain and found.waiting == (0, 1, 2)
    assert "has left all_reduce #10" in found.sentence and "device lost" in found.sentence
    well = replace(lost, accelerator=DeviceFacts("idle", 0, ""))
    (found,) = hangs([*(window(r, entered=10, finished=9) for r in range(3)), well], PACE, LIMITS)
    assert found.kind == "communication-hang" and found.ranks == ()


def failed_at(seconds_ago: float, since_s: float = 1.2, **more: Any) -> list[Finding]:
    """Rank 3's collective failed, and the others have been in it for a while. All hosts launch on."""
    waiting = [window(r, entered=50, finished=9, quiet_s=since_s, idle_s=0.0) for r in range(3)]
    broke = window(3, entered=50, finished=20, error="remote error", quiet_s=0.1, idle_s=0.0)
    failed = FailedCollective(1, "all_reduce #10 of group dp", NOW - round(seconds_ago * S), 199)
    return hangs([*waiting, replace(broke, failed=failed)], more.get("pace", PACE), LIMITS)


def test_a_rank_whose_collective_failed_is_named_a_second_after_it() -> None:
    """Also of a slow job, and of one whose pace is not known yet: the error needs no pace."""
    for pace in (PACE, Pace(), Pace(steps=200, recent_s=(5.0,) * 100)):
        (found,) = failed_at(1.2, pace=pace)
        assert (found.kind, found.ranks, found.waiting, found.certain) == ("hang", (3,), (0, 1, 2), False)
        assert "a collective failed on it (remote error)" in found.sentence
    assert failed_at(0.8, since_s=0.8) == []


def test_an_error_of_long_ago_explains_no_later_stall() -> None:
    assert failed_at(60, since_s=1.2) == []
    (found,) = failed_at(60, since_s=30)
    assert (found.kind, found.ranks) == ("communication-hang", ())


def test_a_rank_stopped_at_an_earlier_collective_is_reported_once() -> None:
    """Its host had enqueued more, but its device stands at an earlier one than the others' devices."""
    stopped = window(3, entered=12, finished=7, process=ProcessFacts(state="T"))
    (found,) = hangs([*(window(r, entered=12, finished=9) for r in range(3)), stopped], PACE, LIMITS)
    assert found.ranks == (3,) and found.certain and found.waiting == (0, 1, 2)
    assert "has been in all_reduce #8" in found.sentence and "left" not in found.sentence


def test_two_stuck_devices_are_named_together() -> None:
    windows = [window(r, entered=30, finished=9) for r in range(2)]
    stuck = [window(r, entered=12, finished=9, approaching=True) for r in (2, 3)]
    (found,) = hangs([*windows, *stuck], PACE, LIMITS)
    assert (found.ranks, found.waiting) == ((2, 3), (0, 1))
    assert "their devices have been busy for 30.0 s without finishing what they run" in found.sentence


def test_a_stuck_device_beside_a_host_that_never_comes_is_named_too() -> None:
    windows = [window(r, entered=30, finished=9) for r in range(2)]
    stuck = window(2, entered=12, finished=9, approaching=True)
    absent = window(3, entered=9, finished=9, state="idle")
    (found,) = hangs([*windows, stuck, absent], PACE, LIMITS)
    assert (found.ranks, found.waiting) == ((2, 3), (0, 1))
    assert "rank 3 on node n has not entered all_reduce #10" in found.sentence
    assert found.sentence.endswith("the device of rank 2 has not reached it either; ranks 0 and 1 wait")
    moving = replace(stuck, accelerator=DeviceFacts("busy", S // 10, ""))
    (found,) = hangs([*windows, moving, absent], PACE, LIMITS)
    assert found.ranks == (3,), "a device that has just finished something is not stuck"
    gone = replace(absent, process=ProcessFacts(state="T"))
    (found,) = hangs([*windows, stuck, gone], PACE, LIMITS)
    assert found.certain and found.ranks == (3,), "the certain one is to blame, the other is mentioned"
    assert "the device of rank 2 has not reached it either" in found.sentence


def test_a_device_that_has_not_come_where_others_have_left_is_stuck() -> None:
    """The others may leave: nothing was to be sent, or nobody knows when their part ended."""
    stuck = window(1, entered=12, finished=9, approaching=True)
    others = [window(r, entered=40, finished=20) for r in (0, 2, 3)]
    (found,) = hangs([*others, stuck], PACE, LIMITS)
    assert (found.kind, found.ranks) == ("hang", (1,))
    assert "has enqueued all_reduce #10 of group dp, but its device has not reached it" in found.sentence


def test_a_rank_that_stays_in_what_most_have_left_is_named() -> None:
    """Its process became another program, or its device ends nothing any more."""
    inside = window(1, entered=12, finished=9)
    others = [window(r, entered=40, finished=20) for r in (0, 2, 3)]
    (found,) = hangs([*others, inside], PACE, LIMITS)
    assert (found.kind, found.ranks, found.certain) == ("hang", (1,), False)
    assert "has not finished all_reduce #10 of group dp for 30.0 s, which the others" in found.sentence


def test_a_rank_that_left_because_its_collective_failed_is_named_with_the_error() -> None:
    """Nobody looked at the work: without its error this is a hang of nobody."""
    left = window(3, entered=14, finished=14, state="idle", error="remote error")
    (found,) = hangs([*(window(r, entered=10, finished=9) for r in range(3)), left], PACE, LIMITS)
    assert (found.kind, found.ranks, found.certain, found.waiting) == ("hang", (3,), False, (0, 1, 2))
    assert "has left all_reduce #10" in found.sentence and "failed on it (remote error)" in found.sentence


def test_an_error_is_reported_before_the_pace_of_the_job_is_known() -> None:
    """A host that is 100 steps ahead fails when its device has made a few steps."""
    windows = [window(r, entered=100, finished=9, quiet_s=5.0) for r in range(3)]
    left = window(3, entered=100, finished=40, quiet_s=0.1, error="remote error")
    (found,) = hangs([*windows, left], Pace(), LIMITS)
    assert (found.kind, found.ranks, found.certain, found.may_act) == ("hang", (3,), False, False)
    left = window(3, entered=100, finished=40, quiet_s=0.1)
    assert hangs([*windows, left], Pace(), LIMITS) == [], "without one it may be a slow start"


def test_a_rank_that_is_still_stopped_while_a_suspended_job_continues_is_not_certain() -> None:
    """Seen on a busy machine: the others had continued, this one came a moment later, and the job was
    restarted. A rank that is stopped while the others ran all the time is certain."""
    stopped = window(3, entered=30, finished=9, process=ProcessFacts(state="T"))
    for stops, certain in ((0, True), (1, True), (3, False), (20, False)):
        facts = ProcessFacts(state="S", stops=stops)
        others = [window(r, entered=30, finished=9, process=facts) for r in range(3)]
        (found,) = hangs([*others, stopped], PACE, LIMITS)
        assert (found.kind, found.ranks) == ("hang", (3,))
        assert (found.certain, found.may_act) == (certain, certain)


BECAME = ProcessFacts(state="S", became="sleep")


def test_a_rank_whose_process_became_another_program_is_named_wherever_it_stood() -> None:
    """Its box stays as it was: in the operation, before it, past it, or it has never entered it. It is known
    before the pace of the job is, and never certain."""
    others = [window(r, entered=100, finished=9, quiet_s=5.0) for r in range(3)]
    for entered, finished in ((60, 9), (60, 8), (60, 10), (9, 9)):
        gone = window(3, entered=entered, finished=finished, quiet_s=5.0, state="unknown", process=BECAME)
        found = hangs([*others, gone], Pace(), LIMITS)
        assert [(f.kind, f.ranks, f.certain, f.may_act) for f in found] == [("hang", (3,), False, False)]
        assert "its process has become another program (sleep)" in found[0].sentence
        plain = replace(gone, process=ProcessFacts(state="S"))
        assert hangs([*others, plain], Pace(), LIMITS) == [], "without that it may be a slow start"


def test_a_program_in_place_of_a_rank_is_acted_on_only_at_the_limit_and_without_a_sign_of_life() -> None:
    limits = StuckLimits(hang_act_s=40.0, act_told=True)
    others = [window(r, entered=100, finished=9, quiet_s=50.0) for r in range(3)]
    for quiet_s, acted in ((45.0, True), (10.0, False)):
        facts = replace(BECAME, quiet_ns=round(quiet_s * S), unchanged_samples=9)
        gone = window(3, entered=60, finished=9, quiet_s=50.0, state="unknown", process=facts)
        (found,) = hangs([*others, gone], PACE, limits)
        assert (found.ranks, found.certain, found.may_act) == ((3,), False, acted)


def pair(op: str, peer: int, seq: int, *, approaching: bool, order_s: float = 60.0) -> Collective:
    at = 0 if approaching else NOW - 30 * S
    made = collective(seq, NOW / S - order_s, peer=peer, approaching=approaching, arrived_ns=at)
    return replace(made, op=op, head_ns=NOW - 30 * S)


def standing(rank: int, *collectives: Collective, size: int = 3) -> RankWindow:
    return replace(
        window(rank, entered=0, finished=0),
        groups=(GroupPosition("dp", size, rank, 0, 0),),
        collectives=collectives,
        counts=(),
        counts_whole=False,
    )


def test_a_stuck_stage_holds_up_both_neighbours() -> None:
    """The next stage waits in a receive whose send is enqueued behind the stuck kernel."""
    first = standing(0, pair("send", 1, 9, approaching=False))
    stuck = standing(1, pair("recv", 0, 9, approaching=True), pair("send", 2, 9, approaching=True))
    last = standing(2, pair("recv", 1, 9, approaching=False))
    (found,) = hangs([first, stuck, last], PACE, LIMITS)
    assert (found.kind, found.ranks, found.waiting) == ("hang", (1,), (0, 2))


def test_a_stuck_device_in_a_ring_of_batches_is_named() -> None:
    """Each rank sends to the next and receives from the one before in one batch, and stands in both."""
    ring = []
    for rank in range(3):
        late = rank == 1
        ring.append(
            standing(
                rank,
                pair("send", (rank + 1) % 3, 9, approaching=late),
                pair("recv", (rank - 1) % 3, 9, approaching=late),
            )
        )
    (found,) = hangs(ring, PACE, LIMITS)
    assert (found.kind, found.ranks, found.waiting) == ("hang", (1,), (0, 2))


def in_group(name: str, seq: int, *, approaching: bool) -> Collective:
    at = 0 if approaching else NOW - 30 * S
    made = collective(seq, NOW / S - 60, approaching=approaching, arrived_ns=at, head_ns=NOW - 30 * S)
    return replace(made, group=name)


def grouped(rank: int, positions: dict[str, tuple[int, int]], *collectives: Collective) -> RankWindow:
    return replace(
        window(rank, entered=0, finished=0),
        groups=tuple(GroupPosition(name, 2, mine, seq, 8) for name, (mine, seq) in positions.items()),
        collectives=collectives,
    )


def test_a_device_that_stands_in_another_group_is_no_culprit() -> None:
    """Rank 1 waits for rank 0 in a pair; rank 3 waits for rank 1 in a row, in which nothing is wrong."""
    stuck = grouped(0, {"tp": (0, 9), "row-a": (0, 9)}, in_group("tp", 9, approaching=True))
    victim = grouped(
        1,
        {"tp": (1, 9), "row-b": (0, 9)},
        in_group("tp", 9, approaching=False),
        in_group("row-b", 9, approaching=True),
    )
    waits = grouped(3, {"tp2": (1, 9), "row-b": (1, 9)}, in_group("row-b", 9, approaching=False))
    (found,) = hangs([stuck, victim, waits], PACE, LIMITS)
    assert (found.kind, found.ranks) == ("hang", (0,))
    assert found.waiting == (1, 3)


def test_groups_used_in_different_orders_on_devices_are_a_circle_but_not_certain() -> None:
    """Each device stands in the operation that the other one has enqueued behind its own."""
    one = grouped(
        0,
        {"a": (0, 9), "b": (0, 9)},
        in_group("a", 9, approaching=False),
        in_group("b", 9, approaching=True),
    )
    two = grouped(
        1,
        {"a": (1, 9), "b": (1, 9)},
        in_group("b", 9, approaching=False),
        in_group("a", 9, approaching=True),
    )
    (found,) = hangs([one, two], PACE, LIMITS)
    assert (found.kind, found.ranks, found.certain) == ("ordering-deadlock", (0, 1), False)
    assert not found.may_act
