"""`loom analyze` on real dumps of gloo jobs that never ran under torchloom, beside torch's own analyzer.

One process imports torch, forks two ranks for each fault, and lets `torchfrtrace` read the same dumps.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.main import run

SCRIPT = Path(__file__).parent / "scripts" / "flight_dumps.py"
FIXTURES = Path(__file__).parents[1] / "data" / "flight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dumps")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(out), str(FIXTURES)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def analyzed(capfd: pytest.CaptureFixture[str], place: Path) -> tuple[int, dict[str, Any]]:
    capfd.readouterr()
    code = run(["analyze", str(place), "--json"])
    return code, json.loads(capfd.readouterr().out)


def torch_missing(said: str) -> set[int]:
    return {
        int(rank) for found in re.findall(r"missing ranks: \{([\d, ]+)\}", said) for rank in found.split(",")
    }


@pytest.mark.parametrize("form", ["", "-json"])
@pytest.mark.parametrize(("case", "absent"), [("missing", 1), ("receive", 0)])
def test_a_rank_that_does_not_come_is_named_by_both(
    made: Path, capfd: pytest.CaptureFixture[str], case: str, absent: int, form: str
) -> None:
    """`receive`: rank 0 waits for a message that nobody sends, so it does not come to the all_reduce."""
    code, said = analyzed(capfd, made / f"{case}{form}")
    assert (code, said["kind"], said["ranks"], said["waiting"]) == (1, "missing-rank", [absent], [1 - absent])
    assert f"rank {absent} has not entered all_reduce #4" in said["verdict"]
    waiting = said["table"][1 - absent]
    assert (waiting["waits_in"], waiting["since_s"] > 1) == ("all_reduce #4", True)
    assert torch_missing((made / f"{case}.torch").read_text()) == {absent}


@pytest.mark.parametrize(
    ("case", "ours", "theirs"),
    [
        ("order", "rank 0: all_reduce of 32 bytes float32; rank 1: broadcast", "COLLECTIVE_TYPE_MISMATCH"),
        ("size", "all_reduce of 32 bytes float32; rank 1: all_reduce of 64 bytes", "SIZE_OR_SYNTAX_MISMATCH"),
    ],
)
def test_operations_that_do_not_match_are_shown_by_both(
    made: Path, capfd: pytest.CaptureFixture[str], case: str, ours: str, theirs: str
) -> None:
    for form in ("", "-json"):
        code, said = analyzed(capfd, made / f"{case}{form}")
        assert (code, said["kind"]) == (1, "desync")
        assert ours in said["verdict"] and len(said["mismatches"]) == 2
    assert theirs in (made / f"{case}.torch").read_text()


def test_a_healthy_job_has_no_fault_for_both(made: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, said = analyzed(capfd, made / "healthy")
    assert (code, said["kind"]) == (0, "no-fault")
    assert (made / "healthy.torch").read_text() == ""


def test_synthesized_dumps_of_nccl_are_judged_as_torch_judges_them(made: Path) -> None:
    """What torch's analyzer names, ours names (test_flight_analysis.py). Where torch differs it says less:
    it needs a dump of every rank, and does not name a device that is behind."""
    said = {file.stem: file.read_text() for file in made.glob("nccl-*.torch")}
    assert torch_missing(said["nccl-missing-rank"]) == {2}
    assert torch_missing(said["nccl-order"]) == {0, 1}
    assert "Culprit rank 1; Error type: SIZE_OR_SYNTAX_MISMATCH" in said["nccl-size"]
    assert "COLLECTIVE_STATE_MISMATCH" in said["nccl-device-behind"]
    assert said["nccl-communication"] == ""
    assert "Missing dump files from ranks {1}" in said["nccl-no-dump"]


def test_the_output_for_a_person_and_what_cannot_be_read(
    made: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for rank in (0, 1):
        data = (made / "missing" / f"rank_{rank}").read_bytes()
        (tmp_path / f"a_{rank}").write_bytes(data if rank == 0 else data[:-20])
    assert run(["analyze", str(tmp_path)]) == 1
    shown = capfd.readouterr().out
    assert "verdict    no dump of rank 1; rank 0 waits in all_reduce #4" in shown
    assert "a_1 cannot be read: it is damaged" in shown and "WAITS IN" in shown

    (tmp_path / "b_0").write_bytes(b"x")
    assert run(["analyze", str(tmp_path)]) == 2
    assert "two dumps of rank 0: a_0 and b_0" in capfd.readouterr().err
    assert run(["analyze", str(tmp_path), "--prefix", "b_"]) == 1
    assert "b_0 cannot be read" in capfd.readouterr().err
    assert run(["analyze", str(tmp_path / "none")]) == 3
    assert run(["analyze", str(tmp_path), "-p", "c_"]) == 3
