"""Log files: pieces of whole lines, stable offsets, bounded size."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchloom.agent.logs import files
from torchloom.wire.start_line import StartLine, read_start_line


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank-0.log"


def test_pieces_follow_each_other_without_loss(path: Path) -> None:
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(1000)))
    offset, got = 0, b""
    while piece := files.read_piece(path, offset, 100, ended=False):
        if not piece.data:
            break
        assert piece.offset == offset and piece.data.endswith(b"\n")
        got, offset = got + piece.data, piece.next_offset
    assert got == path.read_bytes()


def test_a_line_being_written_is_held_back_until_the_end(path: Path) -> None:
    path.write_bytes(b"whole\nhalf")
    running = files.read_piece(path, 0, 1000, ended=False)
    assert (running.data, running.ended) == (b"whole\n", False)
    over = files.read_piece(path, running.next_offset, 1000, ended=True)
    assert (over.data, over.ended) == (b"half", True)


def test_a_line_longer_than_a_piece_comes_in_parts(path: Path) -> None:
    path.write_bytes(b"x" * 250 + b"\n")
    assert files.read_piece(path, 0, 100, ended=False).data == b"x" * 100


def test_the_last_lines(path: Path) -> None:
    path.write_bytes(b"one\ntwo\nthree\nhal")
    assert files.read_piece(path, -2, 1000, ended=False).data == b"two\nthree\n"
    last = files.read_piece(path, -2, 1000, ended=True)
    assert (last.data, last.offset, last.next_offset) == (b"three\nhal", 8, 17)
    assert files.read_piece(path, -99, 1000, ended=True).data == path.read_bytes()
    assert (
        files.read_piece(path, -99, 8, ended=True).data == b"hal"
    )  # bounded: whole lines of the last 8 bytes


def test_what_is_not_there_is_empty(path: Path) -> None:
    piece = files.read_piece(path, 7, 100, ended=True)
    assert (piece.data, piece.next_offset, piece.ended) == (b"", 7, True)
    assert files.tail(path) == ()
    assert files.bound(path, 1) == 0
    path.write_bytes(b"short\n")
    assert files.read_piece(path, 700, 100, ended=True).next_offset == 6


def test_bounding_keeps_offsets_and_tells_what_was_lost(path: Path) -> None:
    text = b"".join(b"line %06d\n" % n for n in range(100_000))
    path.write_bytes(text)
    begin = files.bound(path, 256 << 10)
    assert begin > 0 and path.stat().st_size == len(text)
    assert path.stat().st_blocks * 512 <= 256 << 10
    piece = files.read_piece(path, 120, 1 << 20, ended=True)
    assert piece.lost_bytes == piece.offset - 120
    assert text[piece.offset - 1 : piece.next_offset] == b"\n" + piece.data
    with path.open("ab") as file:  # the writer notices nothing
        file.write(b"after\n")
    assert files.tail(path, 1) == ("after",)
    assert files.bound(path, 256 << 10) == 0  # small enough now


def test_where_no_hole_can_be_punched_the_log_is_dropped_and_offsets_still_hold(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_KEEP_SIZE_AND_PUNCH", 0x40000000)  # no file system knows this mode
    path.write_bytes(b"old line\n" * 100_000)
    size = path.stat().st_size
    files.bound(path, 64 << 10)
    with path.open("ab") as file:
        file.write(b"new\n")
    assert path.stat().st_blocks * 512 <= 64 << 10
    piece = files.read_piece(path, 0, 1000, ended=True)
    assert piece.data.strip(b"\0") == b"new\n"
    assert piece.next_offset == size + 4


def test_a_mark_stands_on_a_line_of_its_own(path: Path) -> None:
    files.mark_start(path, StartLine(1, 0, 2))
    with path.open("ab") as file:
        file.write(b"broken off")
    files.mark_start(path, StartLine(2, 0, 2, 1))
    assert path.read_text() == (
        "[loom] generation 1: rank 0 of 2\nbroken off\n[loom] generation 2: rank 0 of 2, restart 1\n"
    )
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_mark_on_a_full_disk_is_no_error(tmp_path: Path) -> None:
    files.mark_start(Path("/dev/full"), StartLine(1, 0, 2))
    (tmp_path / "file").write_text("")
    files.mark_start(tmp_path / "file" / "rank-0.log", StartLine(1, 0, 2))


def test_the_tail_is_bounded_in_lines_and_in_length(path: Path) -> None:
    path.write_bytes(b"\xff\n" * 30 + b"y" * 5000 + b"\n")
    tail = files.tail(path)
    assert len(tail) == 20 and tail[-1] == "y" * 500 and tail[0] == "\ufffd"


def test_the_line_of_a_start_is_read_as_it_was_written_and_no_other_line_is() -> None:
    for written in (StartLine(1, 0, 2), StartLine(12, 63, 64, 11)):
        assert read_start_line(str(written)) == written
    for printed in ("[loom] generation 3 is the best so far", f"{StartLine(1, 0, 2)} says my script", ""):
        assert read_start_line(printed) is None
