"""When an agent's door is closed: far beyond what an honest agent appends, or if it keeps others out."""

from __future__ import annotations

import pytest

from torchloom.core.nodes import event_shares
from torchloom.core.nodes.event_shares import EventShares


def shares(workers: int = 8) -> EventShares:
    made = EventShares(lambda node: workers)
    assert made.look(0.0, {"n1": 5, "n2": 5}, takes=True) == []
    return made


@pytest.mark.parametrize("workers", [0, 8, 1024])
def test_an_agent_keeps_its_share_and_one_beyond_is_stopped(workers: int) -> None:
    made, burst = shares(workers), event_shares.BURST + event_shares.BURST_A_WORKER * workers
    assert made.look(0.0, {"n1": 5 + int(burst), "n2": 5}, takes=True) == []
    (closing,) = made.look(0.0, {"n1": 6 + int(burst), "n2": 5}, takes=True)
    assert closing.node == "n1" and closing.for_s == event_shares.CLOSED_S and closing.reason
    assert made.closed(1.0) == ["n1"] and made.closed(closing.for_s) == []


def test_a_sustained_rate_below_the_share_is_never_stopped() -> None:
    made, count = shares(), 5
    for second in range(1, 600):
        count += int(event_shares.EVENTS_A_S)
        assert made.look(float(second), {"n1": count}, takes=True) == []


def test_large_events_are_stopped_by_their_bytes() -> None:
    made = shares(0)
    for _ in range(event_shares.BYTES_BURST >> 20):
        made.note("n1", 1 << 20)
    assert made.look(0.0, {"n1": 69}, takes=True) == []
    made.note("n1", 1)
    (closing,) = made.look(0.0, {"n1": 70}, takes=True)
    assert "larger" in closing.reason


def test_while_the_stream_takes_nothing_in_time_the_one_that_fills_it_is_stopped() -> None:
    made = shares()
    assert made.look(1.0, {"n1": 5, "n2": 5}, takes=False) == []
    assert made.look(2.0, {"n1": 30, "n2": 8}, takes=False) == [], "not yet for long"
    (closing,) = made.look(3.1, {"n1": 60, "n2": 11}, takes=False)
    assert closing.node == "n1"


def test_a_slow_stream_alone_stops_nobody() -> None:
    """An honest agent appends one event after the other: few on a stream that takes a second for one."""
    made = shares()
    for second in range(1, 600):
        takes = second % 15 == 0
        assert made.look(float(second), {"n1": 5 + second, "n2": 5 + second // 2}, takes) == []
    fresh = shares()
    assert fresh.look(1.0, {"n1": 45, "n2": 45}, takes=False) == []
    assert fresh.look(9.0, {"n1": 85, "n2": 85}, takes=False) == [], "no one of them is most of it"


def test_each_time_takes_twice_as_long_up_to_a_limit_and_is_forgiven() -> None:
    made, now_s, count, lasted = shares(0), 0.0, 5, []
    for _ in range(8):
        count += int(event_shares.BURST) * 3
        (closing,) = made.look(now_s, {"n1": count}, takes=True)
        lasted.append(closing.for_s)
        now_s += closing.for_s + 0.1
    assert lasted == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 640.0]
    assert made.over(now_s) == []
    ((node, how_long),) = made.over(now_s + event_shares.OVER_AFTER_S)
    assert node == "n1" and how_long > sum(lasted[:-1])
    assert made.over(now_s + event_shares.OVER_AFTER_S) == [], "named once"
    later = now_s + event_shares.FORGIVEN_AFTER_S
    assert made.over(later) == []
    (closing,) = made.look(later, {"n1": count + int(event_shares.BURST) * 3}, takes=True)
    assert closing.for_s == event_shares.CLOSED_S


def test_dropped_history_is_no_flood() -> None:
    made = shares()
    assert made.look(1.0, {"n1": 0}, takes=True) == []
    assert made.look(2.0, {"n1": 5}, takes=True) == []
