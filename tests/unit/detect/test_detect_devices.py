"""On a device a rank stands at its oldest unfinished collective, and enqueued is not arrived."""

from __future__ import annotations

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
from torchloom.model.windows import DeviceFacts

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


def test_hosts_that_are_a_minute_ahead_of_healthy_devices_are_no_hang() -> None:
    """What was enqueued long ago is not late: what counts is since when the device stands at it."""
    windows = [window(r, entered=600, finished=9, quiet_s=0.1, idle_s=5.0) for r in range(4)]
    assert hangs(windows, PACE, LIMITS) == []


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


def test_a_rank_stopped_at_an_earlier_collective_is_reported_once() -> None:
    """Its host had enqueued more, but its device stands at an earlier one than the others' devices."""
    stopped = window(3, entered=12, finished=7, process=ProcessFacts(state="T"))
    (found,) = hangs([*(window(r, entered=12, finished=9) for r in range(3)), stopped], PACE, LIMITS)
    assert found.ranks == (3,) and found.certain and found.waiting == (0, 1, 2)
    assert "has been in all_reduce #8" in found.sentence and "left" not in found.sentence
