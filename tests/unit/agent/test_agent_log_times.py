"""Where in a log a time is: bounded, across restarts, never later than asked for."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from torchloom.agent.logs import times


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank-0.log"


def print_at(path: Path, now_ns: int, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)
    times.note(path, lambda: now_ns)


def test_a_time_leads_to_what_was_printed_from_then_on(path: Path) -> None:
    for now in range(100, 600, 100):
        print_at(path, now, b"%d\n" % now)
    data = path.read_bytes()
    assert data[times.place(path, 1) :] == data
    assert data[times.place(path, 300) :] == b"300\n400\n500\n"
    assert data[times.place(path, 301) :] == b"400\n500\n"
    assert data[times.place(path, 10**18) :] == b""


def test_a_line_that_was_being_written_counts_as_new(path: Path) -> None:
    print_at(path, 100, b"old\nhalf ")
    print_at(path, 200, b"a line\n")
    assert path.read_bytes()[times.place(path, 150) :] == b"half a line\n"


def test_a_log_that_rests_costs_nothing(path: Path) -> None:
    print_at(path, 100, b"a\n")
    size = times.times_file(path).stat().st_size
    for now in range(200, 900, 100):
        times.note(path, lambda now=now: now)  # type: ignore[misc]
    assert times.times_file(path).stat().st_size == size
    assert stat.S_IMODE(times.times_file(path).stat().st_mode) == 0o600


def test_the_past_gets_coarser_and_is_never_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "MOST_ENTRIES", 64)
    for now in range(1, 2001):
        print_at(path, now, b"%d\n" % now)
    assert times.times_file(path).stat().st_size <= 65 * 16
    data = path.read_bytes()
    for since in (1, 2, 500, 1000, 1500, 1999, 2000):
        first = int(data[times.place(path, since) :].split()[0])
        assert first <= since
        assert since < 1980 or first == since, "the newest part keeps its resolution"


def test_a_clock_that_was_set_back_shows_more_and_not_less(path: Path) -> None:
    print_at(path, 1000, b"before\n")
    print_at(path, 500, b"after\n")
    assert path.read_bytes()[times.place(path, 600) :] == b"before\nafter\n"


def test_no_log_no_index_and_a_torn_index(path: Path) -> None:
    times.note(path)
    assert times.place(path, 5) == 0 and not times.times_file(path).exists()
    print_at(path, 100, b"one\n")
    with times.times_file(path).open("ab") as file:
        file.write(b"torn")
    print_at(path, 200, b"two\n")
    assert path.read_bytes()[times.place(path, 150) :] == b"two\n"


def test_a_line_gets_the_time_of_the_look_that_found_it_whole(path: Path) -> None:
    for now in range(100, 600, 100):
        print_at(path, now, b"%d\n" % now)
    assert times.marks(path, 0, 20) == [(4, 100), (8, 200), (12, 300), (16, 400), (20, 500)]
    assert times.marks(path, 8, 12) == [(12, 300)]
    assert times.marks(path, 9, 13) == [(12, 300), (16, 400)]
    assert times.marks(path, 20, 30) == []
    assert times.marks(path.with_name("none"), 0, 5) == []


def test_the_times_of_a_piece_leave_room_for_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "MOST_MARKS", 10)
    for now in range(1, 96):
        print_at(path, now, b"x\n")
    found = times.marks(path, 0, 190)
    assert len(found) <= 10 and found[-1] == (190, 95), "the last one covers the end"
    assert found == sorted(found)
