"""The black box's layout: sections do not overlap, records come back whole or not at all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.wire import blackbox as bb

words = st.integers(0, bb.MASK)


def fresh() -> bb.View:
    view = bb.View(memoryview(bytearray(bb.SIZE)))
    view.set_header(bb.Header.MAGIC, bb.MAGIC)
    view.set_header(bb.Header.LAYOUT, bb.LAYOUT_VERSION)
    view.set_header(bb.Header.SIZE, bb.SIZE)
    return view


BLOBS = [
    bb.IDENTITY,
    bb.PHASE_NAME,
    bb.DEVICE,
    bb.HYPERPARAMETERS,
    bb.METRICS,
    bb.END,
    bb.MAIL,
    bb.CHECKPOINTS,
]


def test_sections_are_aligned_and_do_not_overlap() -> None:
    sections = [
        (bb.HEADER_AT, len(bb.Header) * 8),
        (bb.PROGRESS_AT, len(bb.Progress) * 8),
        (bb.MAILBOX_AT, len(bb.Mailbox) * 8),
        (bb.ANSWER_AT, len(bb.AnswerWord) * 8),
        (bb.GROUPS_AT, bb.GROUP_SLOTS * bb.GROUP_WORDS * 8),
        (bb.STEPS_AT, bb.STEP_SLOTS * bb.STEP_WORDS * 8),
        (bb.COLLECTIVES_AT, bb.COLLECTIVE_SLOTS * bb.COLLECTIVE_WORDS * 8),
        *((blob.at, blob.capacity + 24) for blob in BLOBS),
        (bb.SIZE, 0),
    ]
    assert sections == sorted(sections)
    for (at, size), (following, _) in pairwise(sections):
        assert at % 8 == 0 and at + size <= following


def test_words_of_each_section_are_distinct() -> None:
    for names in (
        bb.Header,
        bb.Progress,
        bb.Mailbox,
        bb.AnswerWord,
        bb.StepWord,
        bb.CollectiveWord,
        bb.GroupWord,
    ):
        values = [member.value for member in names.__members__.values()]
        assert len(set(values)) == len(values), names


def test_a_buffer_that_is_no_black_box() -> None:
    with pytest.raises(ValueError, match="a black box has"):
        bb.View(memoryview(bytearray(100)))
    assert not bb.View(memoryview(bytearray(bb.SIZE))).is_valid()
    view = fresh()
    assert view.is_valid()
    view.set_header(bb.Header.LAYOUT, bb.LAYOUT_VERSION + 1)
    assert not view.is_valid()


@given(st.sampled_from(BLOBS), st.lists(st.binary(max_size=400), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_blobs_come_back_as_written_last(blob: bb.Blob, texts: list[bytes]) -> None:
    view = fresh()
    assert view.read_blob(blob) == b""
    seen = {view.blob_version(blob)}
    for text in texts:
        view.write_blob(blob, text)
        assert view.read_blob(blob) == text
        assert view.blob_version(blob) not in seen
        seen.add(view.blob_version(blob))
    neighbours = [b for b in BLOBS if b != blob]
    assert all(view.read_blob(b) == b"" for b in neighbours)


def test_a_blob_may_be_full_but_not_overfull() -> None:
    view = fresh()
    view.write_blob(bb.PHASE_NAME, b"x" * bb.PHASE_NAME.capacity)
    assert view.read_blob(bb.PHASE_NAME) == b"x" * bb.PHASE_NAME.capacity
    with pytest.raises(ValueError, match="do not fit"):
        view.write_blob(bb.PHASE_NAME, b"x" * (bb.PHASE_NAME.capacity + 1))


def test_a_blob_being_written_or_damaged_is_torn() -> None:
    view = fresh()
    view.write_blob(bb.END, b"all is well")
    view.raw[bb.END.at + 24] ^= 1
    assert view.read_blob(bb.END) is None
    view.write_blob(bb.END, b"all is well")
    view.words[bb.END.at // 8] |= 1
    assert view.read_blob(bb.END) is None, "its writer died in the middle"
    view.write_blob(bb.END, b"again")
    assert view.read_blob(bb.END) == b"again", "a later writer mends it"
    view.words[bb.END.at // 8 + 1] = bb.MASK
    assert view.read_blob(bb.END) is None, "a length out of range is not believed"


def test_steps_come_back_and_old_ones_are_overwritten() -> None:
    view = fresh()
    count = bb.STEP_SLOTS + 10
    for seq in range(1, count + 1):
        view.write_step(seq, seq * 100, 100, 7, 3)
        view.set_progress(bb.Progress.STEPS, seq)
    assert view.read_step(count) == bb.Step(count, count * 100, 100, 7, 3)
    assert view.read_step(10) is None
    steps = list(view.steps())
    assert [s.seq for s in steps] == list(range(11, count + 1))
    assert [s.seq for s in view.steps(last=3)] == [count - 2, count - 1, count]


@given(st.integers(0, bb.STEP_WORDS - 1), words)
@settings(max_examples=60, deadline=None)
def test_a_damaged_step_is_left_out_or_unharmed(word: int, value: int) -> None:
    view = fresh()
    view.write_step(1, 100, 50, 7, 3)
    good = view.read_step(1)
    view.words[bb.STEPS_AT // 8 + word] = value
    assert view.read_step(1) in (None, good)


def write_collective(view: bb.View, seq: int, completion: int, dtype: int = 7) -> None:
    at = bb.COLLECTIVES_AT // 8 + (seq - 1) % bb.COLLECTIVE_SLOTS * bb.COLLECTIVE_WORDS
    packed = dtype | bb.FLAG_ASYNC << 16 | 4 << 32
    body = [seq, 1, bb.group_key("default"), seq, 4096, packed, bb.NO_PEER, 1000 + seq]
    for i, word in enumerate([*body, bb.checksum(body), completion]):
        view.words[at + i] = word
    view.set_progress(bb.Progress.COLLECTIVES_ENTERED, seq)


def test_collectives_in_flight_finished_and_failed() -> None:
    view = fresh()
    source = bb.Source.CALLBACK << 1
    write_collective(view, 1, 2000 << bb.TIME_SHIFT | source)
    write_collective(view, 2, 3000 << bb.TIME_SHIFT | source | 1)
    write_collective(view, 3, bb.IN_FLIGHT | 3 << bb.TIME_SHIFT | source)
    done, failed, flying = view.collectives()
    assert (done.finished_ns, done.flags, done.peer, done.group_size) == (2000, bb.FLAG_ASYNC, None, 4)
    assert failed.flags == bb.FLAG_ASYNC | bb.FLAG_FAILED and failed.finished_ns == 3000
    assert flying.finished_ns == 0 and flying.source == bb.Source.CALLBACK
    assert (bb.OPS[done.op], bb.DTYPES[done.dtype], done.bytes) == ("allreduce_", "float32", 4096)


@given(st.integers(0, 8), words)
@settings(max_examples=60, deadline=None)
def test_a_damaged_collective_is_left_out_or_unharmed(word: int, value: int) -> None:
    view = fresh()
    write_collective(view, 1, 2000 << bb.TIME_SHIFT)
    good = view.read_collective(1)
    view.words[bb.COLLECTIVES_AT // 8 + word] = value
    assert view.read_collective(1) in (None, good)


def test_groups_are_read_by_key_and_a_strange_name_does_no_harm() -> None:
    view = fresh()
    at = bb.GROUPS_AT // 8 + bb.GROUP_WORDS
    view.raw[(at + bb.GroupWord.NAME) * 8 : (at + bb.GroupWord.NAME) * 8 + 4] = b"tp\xff\xfe"
    view.words[at + bb.GroupWord.NAME_LENGTH] = 4
    view.words[at + bb.GroupWord.SIZE] = 8 | 3 << 32
    view.words[at + bb.GroupWord.ENTERED] = 5
    assert view.groups() == {}, "the key is written last"
    view.words[at + bb.GroupWord.KEY] = 77
    (group,) = view.groups().values()
    assert (group.key, group.size, group.rank, group.entered, group.finished) == (77, 8, 3, 5, 0)
    assert group.name.startswith("tp") and bb.GROUP_NAME_BYTES == 88


@given(st.lists(words, max_size=8))
def test_checksums_and_keys_are_never_zero(values: list[int]) -> None:
    assert 0 < bb.checksum(values) <= bb.MASK
    assert bb.group_key("") and bb.group_key("default") != bb.group_key("default2")
