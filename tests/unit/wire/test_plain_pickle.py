"""The reader of pickles with plain data: the same values as Python's own, and nothing else ever."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.errors import DumpUnreadable
from torchloom.wire.flight_dump import decode_dump
from torchloom.wire.plain_pickle import ReadLimits, loads

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text(max_size=8) | st.integers(0, 9), inner, max_size=5)
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(value=PLAIN, protocol=st.integers(2, 5))
def test_plain_data_is_read_as_python_reads_it(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert loads(data) == pickle.loads(data)


def test_what_is_shared_stays_shared_and_a_long_list_is_read() -> None:
    word = "all_reduce"
    entries = [{"op": word, "at": n, "sizes": [[n, 8]]} for n in range(3000)]
    assert loads(pickle.dumps(entries, 2)) == entries


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path, protocol: int) -> None:
    with pytest.raises(DumpUnreadable):
        loads(pickle.dumps({"entries": [Harmful(tmp_path / "made")]}, protocol))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "value", [set("a"), frozenset("a"), b"bytes", bytearray(1), 1j, range(3), Path("/"), {(1, 2): 3}]
)
def test_everything_but_plain_data_is_refused(value: object) -> None:
    with pytest.raises(DumpUnreadable):
        loads(pickle.dumps(value, 4))


def test_every_cut_of_a_dump_is_refused() -> None:
    whole = pickle.dumps(
        {"version": "2.10", "entries": [{"a": (1, None, True), "b": [1.5, "x" * 300, 2**40]}]}, 2
    )
    for end in range(len(whole)):
        with pytest.raises(DumpUnreadable):
            loads(whole[:end])


def test_a_small_file_cannot_ask_for_much() -> None:
    text = b"X" + struct.pack("<I", 2**32 - 1)
    long_number = b"\x8a\xff" + b"\xff" * 255
    doubled = b"]q\x00" + b"(" + b"h\x00h\x00" * 10_000 + b"e"
    for body in (
        text,
        long_number,
        b"\x8d" + struct.pack("<Q", 2**63),
        b"(" * 100_000 + b"t" * 100_001,
        b"e",
        b"s",
        b"u",
    ):
        with pytest.raises(DumpUnreadable):
            loads(b"\x80\x02" + body + b".")
    with pytest.raises(DumpUnreadable, match="too many"):
        loads(b"\x80\x02" + doubled + b".", ReadLimits(values=1000))
    with pytest.raises(DumpUnreadable, match="larger"):
        loads(b"\x80\x02}." + b" " * 2_000_000, ReadLimits(size=2**20))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_changed_bytes_are_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(
        pickle.dumps({"version": "2.10", "entries": [{"a": (1, None), "b": [1.5, "x"]}] * 3}, 2)
    )
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        loads(bytes(whole))
    except DumpUnreadable:
        pass


@pytest.mark.parametrize("data", [b"", b"{", b'{"a": ' * 100_000, b"[]", b"\x80\x05", b"hello", b"{\xff}"])
def test_bytes_that_are_no_dump_are_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(DumpUnreadable) as caught:
        decode_dump(data)
    assert str(caught.value).startswith(("it is ", "it holds "))
