"""A piece of a log cut into parts: nothing lost, no character broken, no line that is searched torn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchloom.api.log_stream import parts


@given(st.text(alphabet="aä€😀\n", max_size=200), st.integers(8, 40))
def test_parts_are_the_piece_and_break_no_character(text: str, most: int) -> None:
    found = list(parts(text.encode(), most, whole_lines=False))
    assert b"".join(found) == text.encode() and "".join(part.decode() for part in found) == text
    assert all(len(part) <= most for part in found)


@given(st.binary(max_size=300), st.integers(8, 40), st.booleans())
def test_any_bytes_are_cut_without_loss(data: bytes, most: int, whole_lines: bool) -> None:
    found = list(parts(data, most, whole_lines))
    assert b"".join(found) == data and all(found[:-1])
    if whole_lines:
        assert all(part.endswith(b"\n") for part in found[:-1])
