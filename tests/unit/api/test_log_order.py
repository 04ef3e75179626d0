"""Lines of several ranks in the order of time: nothing lost, twice or overtaken by its own rank."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from torchloom.api.log_order import AHEAD_NS, Merge, Stretch, stretches
from torchloom.model.messages import LogPiece


def test_lines_get_the_time_by_which_they_were_whole() -> None:
    data = b"one\ntwo\nthree\n"
    piece = LogPiece(data, 100, 114, marks=((104, 10), (110, 20), (114, 30)))
    found = [(s.data, s.offset, s.at_ns) for s in stretches(3, piece)]
    assert found == [(b"one\n", 100, 10), (b"two\n", 104, 20), (b"three\n", 108, 30)]
    assert [s.at_ns for s in stretches(3, piece, shift_ns=5)] == [15, 25, 35]
    assert list(stretches(3, LogPiece(b"", 7, 7, lost_bytes=7))) == [Stretch(3, b"", 7, 0, 7)]
    assert list(stretches(3, LogPiece(b"", 7, 7))) == []


@given(
    st.lists(st.sampled_from([b"a\n", b"bb\n", b"c", b"\n"]), max_size=20),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 99)), max_size=8),
    st.integers(0, 9),
)
def test_stretches_are_the_piece(lines: list[bytes], marks: list[tuple[int, int]], offset: int) -> None:
    data = b"".join(lines)
    ordered = tuple((offset + at, ns) for at, ns in sorted(marks))
    found = list(stretches(0, LogPiece(data, offset, offset + len(data), marks=ordered)))
    assert b"".join(s.data for s in found) == data
    assert all(s.data.endswith(b"\n") for s in found[:-1])
    assert all(a.offset + len(a.data) == b.offset and a.at_ns <= b.at_ns for a, b in pairwise(found))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=40), st.integers(1, 30))
def test_ranks_are_merged_by_time_up_to_the_horizon(printed: list[tuple[int, int]], horizon: int) -> None:
    merge = Merge()
    last: dict[int, int] = {}
    given_: list[Stretch] = []
    for number, (rank, at_ns) in enumerate(printed):
        last[rank] = max(last.get(rank, 0), at_ns)
        given_.append(Stretch(rank, b"%d\n" % number, number, last[rank]))
    merge.add(given_)
    first = list(merge.take(100, horizon))
    assert all(s.at_ns <= horizon for s in first)
    assert sorted(s.offset for s in first) == sorted(s.offset for s in given_ if s.at_ns <= horizon)
    found = [*first, *merge.take(100, 2**63)]
    assert [s.at_ns for s in found] == sorted(s.at_ns for s in given_) and merge.empty
    for rank in range(4):
        assert [s.offset for s in found if s.rank == rank] == [s.offset for s in given_ if s.rank == rank]


def test_a_time_far_in_the_future_holds_nothing_back() -> None:
    merge = Merge()
    merge.add([Stretch(0, b"x\n", 0, 10 + 2 * AHEAD_NS), Stretch(1, b"y\n", 0, 10 + AHEAD_NS // 2)])
    assert [s.rank for s in merge.take(10, 10)] == [0]
    assert merge.holds(1) and not merge.holds(0)
