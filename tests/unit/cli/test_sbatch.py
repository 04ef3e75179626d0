"""The script of `loom sbatch`, and what the states of Slurm mean. e2e/test_slurm.py runs one for real."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from torchloom.agent.health.slurm import judge_state
from torchloom.cli.places import sbatch
from torchloom.errors import UsageError


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert sbatch.main(list(argv)) == 0
    return capsys.readouterr().out


def test_the_script_is_valid_and_keeps_every_word_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT_DIR", "/shared")
    text = printed(
        capsys,
        *("--nnodes", "4", "--nproc-per-node", "8", "--time", "12:00:00", "--sbatch", "constraint=a100"),
        *("--max-restarts=3", "train.py", "--name", "it's $HOME", "--time", "5"),
    )
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    head = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    for option in ("--nodes=4", "--time=12:00:00", "--constraint=a100", "--requeue", "--job-name=train"):
        assert f"#SBATCH {option}" in head
    assert "--no-kill" not in text, "without spare nodes Slurm requeues a job that lost one"
    command = text[text.index(" run --queue") :].splitlines()[1]
    assert command.strip() == (
        "--nnodes 4 --nproc-per-node 8 --max-restarts=3 train.py --name 'it'\"'\"'s $HOME' --time 5"
    )
    assert "--slots 8" in text


def test_spare_nodes_are_part_of_the_allocation_and_keep_it_alive(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--nnodes", "2", "--standby", "1", "--name", "mine", "train.py")
    assert "#SBATCH --nodes=3" in text and "#SBATCH --no-kill" in text
    assert "job=mine-$SLURM_JOB_ID" in text and "--name mine" not in text


def test_the_epilog_is_valid_and_never_fails(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--epilog")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert text.endswith("exit 0\n") and "torchloom.cli.places.allocation sweep" in text


def test_without_requeueing_the_job_is_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--no-requeue", "--save-within", "60", "train.py")
    assert "scontrol requeue" not in text and 'stop "$job"' in text and "USR1@60" in text
    assert "= RUNNING ] || return" in text, "a cancelled job is left alone"
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_options_of_sbatch_are_quoted_as_sbatch_reads_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "it's here").mkdir()
    monkeypatch.chdir(tmp_path / "it's here")
    text = printed(
        capsys,
        *("--sbatch", "--array=0-3", "--sbatch", "comment=two words", "--sbatch", "--begin='now+1 hour'"),
        *("--output", "out put.txt", "t.py"),
    )
    head = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    for option in ("--array=0-3", "--comment='two words'", "--begin='now+1 hour'", "--output='out put.txt'"):
        assert option in head, head
    (where,) = [shlex.split(line) for line in head if line.startswith("--chdir")]
    assert where == [f"--chdir={tmp_path}/it's here"]


@pytest.mark.parametrize(
    "argv",
    [
        ("--detach", "t.py"),
        ("--save-within", "5", "t.py"),
        ("--nope", "t.py"),
        ("--epilog", "t.py"),
        ("--nnodes", "2", "--epilog"),
        ("--name", "two words", "t.py"),
        ("--sbatch", "", "t.py"),
        ("--sbatch",),
        ("--time",),
        ("--save-within", "soon", "t.py"),
    ],
)
def test_what_makes_no_sense_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        sbatch.main(argv)


@pytest.mark.parametrize(
    ("line", "level", "why"),
    [
        ("NodeName=n1 State=ALLOCATED ThreadsPerCore=1", "ok", ""),
        (
            "NodeName=n1 State=IDLE+DRAIN ThreadsPerCore=1 Reason=fan broken [root@2026-11-17T12:59:19]",
            "failing",
            "Slurm has the node in state DRAIN: fan broken",
        ),
        ("NodeName=n1 State=MIXED* Port=1", "degraded", "Slurm has the node in state NOT_RESPONDING"),
        ("NodeName=n1 State=DOWN*+DRAIN Port=1", "failing", "Slurm has the node in state DOWN+DRAIN"),
        ("", "ok", ""),
    ],
)
def test_the_states_of_slurm(line: str, level: str, why: str) -> None:
    assert judge_state(line) == (level, why)


@pytest.mark.parametrize(
    "words",
    [
        ("--partition", "a\ntouch owned"),
        ("--output=a\nb",),
        ("--sbatch", "constraint=a\rb"),
        ("--save-within", "10"),
        ("--save-within", "70000"),
    ],
)
def test_what_slurm_cannot_be_asked_for_is_not_printed(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError):
        sbatch.main([*words, "train.py"])
    assert not capsys.readouterr().out


def test_a_directory_of_two_lines_adds_nothing_to_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "a\ntouch owned"
    odd.mkdir()
    monkeypatch.chdir(odd)
    with pytest.raises(UsageError, match="more than one line"):
        sbatch.main(["train.py"])
