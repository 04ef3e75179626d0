"""The black box's layout, and that a reader in another process never takes half a write for a whole one."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.wire import blackbox as bb

WRITER = """
import mmap, sys
from torchloom.wire import blackbox as bb

with open(sys.argv[1], "r+b") as file:
    view = bb.View(memoryview(mmap.mmap(file.fileno(), bb.SIZE)))
what, k = sys.argv[2], 0
words = view.words
while view.header(bb.Header.LIFE) != bb.Life.ENDED:
    for k in range(k + 1, k + 200):
        if what == "words":
            pattern = (k & 0xFFFFFFFF) * 0x100000001
            for i in range(bb.PROGRESS_AT // 8, bb.PROGRESS_AT // 8 + 100):
                words[i] = pattern
        elif what == "blob":
            view.write_blob(bb.METRICS, bytes([k % 251]) * (1 + k * 37 % 4000))
        else:
            view.write_step(k, k * 3, k * 5, k * 7, k * 11)
            view.set_progress(bb.Progress.STEPS, k)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "box"
    path.write_bytes(bytes(bb.SIZE))
    return path


@pytest.fixture
def view(path: Path) -> bb.View:
    with path.open("r+b") as file:
        return bb.View(memoryview(mmap.mmap(file.fileno(), bb.SIZE)))


def writing(path: Path, view: bb.View, what: str) -> Iterator[None]:
    """Yields as long as the caller likes while another process writes; ends that process afterwards."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), what], env=environment)
    try:
        while True:
            assert writer.poll() is None
            yield
    finally:
        view.set_header(bb.Header.LIFE, bb.Life.ENDED)
        writer.wait(120)


def test_ten_million_words_are_never_half_written(path: Path, view: bb.View) -> None:
    wrong = seen = 0
    values: set[int] = set()
    at = bb.PROGRESS_AT // 8
    for _ in (pair := writing(path, view, "words")):
        values.clear()
        for _ in range(100):
            values.update(view.words[at : at + 100].tolist())
        wrong += sum(1 for v in values if v >> 32 != v & 0xFFFFFFFF)
        seen += 10_000 if values != {0} else 0
        if seen >= 10_000_000:
            break
    pair.close()
    assert wrong == 0


def test_a_blob_is_whole_or_torn(path: Path, view: bb.View) -> None:
    seen: set[bytes] = set()
    torn = wrong = 0
    for _ in (pair := writing(path, view, "blob")):
        data = view.read_blob(bb.METRICS)
        if data is None:
            torn += 1
        elif data:
            wrong += data != data[:1] * len(data)
            seen.add(data)
        if len(seen) > 500:
            break
    pair.close()
    assert wrong == 0
    last = view.read_blob(bb.METRICS)
    assert last  # a writer that has stopped leaves a whole blob


def test_a_step_record_is_whole_or_torn(path: Path, view: bb.View) -> None:
    seen = wrong = 0
    for _ in (pair := writing(path, view, "steps")):
        for step in view.steps():
            k = step.seq
            wrong += step[1:] != (k * 3, k * 5, k * 7, k * 11)
            seen += 1
        if seen > 20_000:
            break
    pair.close()
    assert wrong == 0


def test_sections_do_not_overlap() -> None:
    blobs = [
        bb.IDENTITY,
        bb.PHASE_NAME,
        bb.DEVICE,
        bb.HYPERPARAMETERS,
        bb.METRICS,
        bb.END,
        bb.MAIL,
        bb.CHECKPOINTS,
    ]
    sections = [
        (bb.HEADER_AT, len(bb.Header) * 8),
        (bb.PROGRESS_AT, len(bb.Progress) * 8),
        (bb.MAILBOX_AT, len(bb.Mailbox) * 8),
        (bb.ANSWER_AT, len(bb.AnswerWord) * 8),
        (bb.GROUPS_AT, bb.GROUP_SLOTS * bb.GROUP_WORDS * 8),
        (bb.STEPS_AT, bb.STEP_SLOTS * bb.STEP_WORDS * 8),
        (bb.COLLECTIVES_AT, bb.COLLECTIVE_SLOTS * bb.COLLECTIVE_WORDS * 8),
        *((blob.at, 24 + blob.capacity) for blob in blobs),
    ]
    for (start, length), (following, _) in zip(sections, [*sections[1:], (bb.SIZE, 0)], strict=True):
        assert start % 8 == 0
        assert start + length <= following


def _write_collective(view: bb.View, seq: int, completion: int, **changes: int) -> int:
    body = {
        "op": 1,
        "group": 7,
        "group_seq": 3,
        "bytes": 64,
        "packed": 7 | 1 << 16 | 2 << 32,
        "peer": bb.NO_PEER,
    }
    words = [seq, *(body | changes).values(), 1000]
    at = bb.COLLECTIVES_AT // 8 + (seq - 1) % bb.COLLECTIVE_SLOTS * bb.COLLECTIVE_WORDS
    for i, word in enumerate([*words, bb.checksum(words), completion]):
        view.words[at + i] = word
    view.set_progress(bb.Progress.COLLECTIVES_ENTERED, seq)
    return at


def test_a_collective_in_flight_and_ended(view: bb.View) -> None:
    at = _write_collective(view, 5, bb.IN_FLIGHT | 5 << bb.TIME_SHIFT | bb.Source.CALLBACK << 1)
    flying = view.read_collective(5)
    assert flying is not None
    assert (flying.finished_ns, flying.source, flying.flags) == (0, bb.Source.CALLBACK, bb.FLAG_ASYNC)
    view.words[at + bb.CollectiveWord.COMPLETION] = 2000 << bb.TIME_SHIFT | bb.Source.CALLBACK << 1 | 1
    ended = view.read_collective(5)
    assert ended is not None
    assert (ended.finished_ns, ended.flags) == (2000, bb.FLAG_ASYNC | bb.FLAG_FAILED)
    assert (ended.dtype, ended.group_size, ended.peer) == (7, 2, None)


def test_a_late_writer_cannot_vouch_for_another_record(view: bb.View) -> None:
    """A thread that stalls before writing its number, 1,024 records ago, must not relabel the new body."""
    at = _write_collective(view, 5 + bb.COLLECTIVE_SLOTS, 0, bytes=128)
    view.words[at] = 5
    assert view.read_collective(5) is None
    assert view.read_collective(5 + bb.COLLECTIVE_SLOTS) is None


def test_a_damaged_record_is_left_out(view: bb.View) -> None:
    for seq in (1, 2, 3):
        at = _write_collective(view, seq, 0)
        if seq == 2:
            view.words[at + bb.CollectiveWord.BYTES] ^= 1
    assert [record.seq for record in view.collectives()] == [1, 3]


def test_a_blob_too_long_is_refused(view: bb.View) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        view.write_blob(bb.PHASE_NAME, b"x" * 4096)
    view.write_blob(bb.PHASE_NAME, b"x" * bb.PHASE_NAME.capacity)
    assert view.read_blob(bb.PHASE_NAME) == b"x" * bb.PHASE_NAME.capacity


def test_a_buffer_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="black box"):
        bb.View(memoryview(bytearray(100)))
