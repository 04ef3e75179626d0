"""The log of a rank where its job wants it: found from both sides, never in somebody else's hands."""

from __future__ import annotations

from pathlib import Path

from torchloom.agent.logs import files, placing, times
from torchloom.model.worker import WorkerRef
from torchloom.wire.start_line import StartLine

REF = WorkerRef("job", 1, 2, 0)


def test_a_log_is_written_where_the_person_asked_and_read_as_ever(tmp_path: Path) -> None:
    here, wanted = tmp_path / "home" / "job" / "rank-1.log", tmp_path / "made" / "logs"
    assert placing.place(here, str(wanted), REF) == ""
    files.mark_start(here, StartLine(1, 1, 2))
    file = wanted / "job" / str(REF.rank) / "stdout.log"
    assert file.read_text() == "[loom] generation 1: rank 1 of 2\n" and not file.is_symlink()
    assert files.read_piece(here, 0, 100, ended=True).data == file.read_bytes()
    times.note(here)
    assert times.times_file(here).exists() and not times.times_file(file).exists()
    assert placing.place(here, str(wanted), REF) == "", "the next generation continues it"
    assert file.read_text().startswith("[loom]") and len(list(file.parent.iterdir())) == 1


def test_an_earlier_job_of_that_name_keeps_its_log(tmp_path: Path) -> None:
    wanted = tmp_path / "logs"
    for number in range(3):
        here = tmp_path / f"home-{number}" / "rank-1.log"
        assert placing.place(here, str(wanted), REF) == ""
        files.write_line(here, f"job {number}")
    directory = wanted / "job" / str(REF.rank)
    found = {file.name: file.read_text() for file in directory.iterdir()}
    assert found == {"stdout.log": "job 2\n", "stdout.log.1": "job 0\n", "stdout.log.2": "job 1\n"}


def test_a_place_that_cannot_be_used_costs_the_place_only(tmp_path: Path) -> None:
    here, taken = tmp_path / "home" / "rank-1.log", tmp_path / "file"
    taken.write_text("")
    assert "cannot be used" in placing.place(here, str(taken), REF) and not here.exists()
    trap = tmp_path / "logs"
    (tmp_path / "elsewhere").mkdir()
    trap.mkdir()
    (trap / "job").symlink_to(tmp_path / "elsewhere")
    assert "symbolic link" in placing.place(here, str(trap), REF)
    assert list((tmp_path / "elsewhere").iterdir()) == []
