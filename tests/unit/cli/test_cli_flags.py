"""`loom run` takes torchrun's command lines word for word."""

from __future__ import annotations

import os
from argparse import Namespace

import pytest

from torchloom.cli.jobs import flags
from torchloom.errors import UsageError


def parse(*argv: str) -> Namespace:
    return flags.parse("run", argv)


@pytest.mark.parametrize("spelling", ["--nproc-per-node", "--nproc_per_node"])
def test_both_spellings(spelling: str) -> None:
    assert flags.worker_count(parse(spelling, "4", "train.py"), {}) == 4
    assert flags.worker_count(parse(f"{spelling}=3", "train.py"), {}) == 3


def test_what_follows_the_script_is_the_scripts() -> None:
    options = parse("--nproc-per-node", "2", "train.py", "--name", "x", "-m", "--", "--nnodes=9")
    assert options.script == "train.py"
    assert options.script_args == ["--name", "x", "-m", "--", "--nnodes=9"]
    assert options.name is None and not options.module


@pytest.mark.parametrize(
    "own",
    [
        ["--p", "5"],
        ["--n", "5", "--na", "x"],
        ["-l"],
        ["-lr", "0.1"],
        ["--help"],
        ["-h"],
        ["--json", "--detach"],
        ["--", "--name", "y"],
        ["a", "--", "b"],
        ["--nproc-per-node"],
        ["-m", "mod"],
        ["--max-restarts=abc"],
        ["-"],
        [""],
    ],
)
@pytest.mark.parametrize(
    "before", [["train.py"], ["--", "train.py"], ["-m", "train.py"], ["--no-python", "train.py"]]
)
def test_any_word_after_the_script_reaches_it_unread(before: list[str], own: list[str]) -> None:
    options = parse("--nproc-per-node", "2", *before, *own)
    assert (options.script, options.script_args) == ("train.py", own)
    assert options.name is None and not options.json and options.nproc_per_node == "2"
    assert options.module == ("-m" in before) and options.no_python == ("--no-python" in before)


@pytest.mark.parametrize("short", ["--nproc", "--no", "--na", "--pol", "--max-restart"])
def test_a_flag_before_the_script_is_written_in_full(short: str) -> None:
    with pytest.raises(UsageError, match=f"no flag {short} before the script"):
        parse(short, "2", "train.py")


def test_flags_with_their_values_in_one_word_are_found_before_the_script() -> None:
    options = parse("-la=b", "-l", "c=d", "--name=x", "--label=e=f", "-t3", "train.py", "-lz")
    assert (options.label, options.name, options.script_args) == (["a=b", "c=d", "e=f"], "x", ["-lz"])


@pytest.mark.parametrize("odd", ["-x.py", "--strange"])
def test_a_script_that_looks_like_a_flag_needs_two_hyphens_before_it(odd: str) -> None:
    options = parse("--", odd, "a")
    assert (options.script, options.script_args) == (odd, ["a"])


@pytest.mark.parametrize("argv", [[], ["--json"], ["--"], ["--name", "x"]])
def test_without_a_script_that_is_said(argv: list[str]) -> None:
    with pytest.raises(UsageError, match="script"):
        parse(*argv)


def test_a_full_torchrun_line_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    options = flags.parse(
        "run",
        [
            "--standalone",
            "--nnodes",
            "1:1",
            "--nproc_per_node=2",
            "--rdzv_backend",
            "c10d",
            "--rdzv_id",
            "7",
            "--rdzv_conf",
            "a=b",
            "--max_restarts",
            "3",
            "--monitor_interval",
            "1",
            "--start_method",
            "fork",
            "--event-log-handler",
            "null",
            "--local_addr",
            "h",
            "--signals-to-handle",
            "SIGTERM",
            "--shutdown-timeout",
            "5",
            "-m",
            "pkg.train",
            "--lr",
            "1",
        ],
    )
    assert options.module and options.script == "pkg.train" and options.script_args == ["--lr", "1"]
    assert flags.restarts(options, {}) == 3 and options.shutdown_timeout == 5
    assert capsys.readouterr().err == ""


def test_flags_done_in_another_way_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    flags.parse("run", ["--master_port", "29501", "-t", "3", "--node-rank", "0", "train.py"])
    said = capsys.readouterr().err
    assert "--master-port has no effect" in said and "--tee" in said and "--node-rank" not in said
    assert said.count("\n") == 2


@pytest.mark.parametrize(
    ("argv", "env", "count"),
    [
        ((), {}, 1),
        ((), {"WORLD_SIZE": "4"}, 4),
        ((), {"PET_NPROC_PER_NODE": "3", "WORLD_SIZE": "4"}, 3),
        (("--nproc-per-node", "2"), {"WORLD_SIZE": "4"}, 2),
        (("--nproc-per-node", "cpu"), {}, os.cpu_count()),
    ],
)
def test_number_of_workers(argv: tuple[str, ...], env: dict[str, str], count: int) -> None:
    assert flags.worker_count(parse(*argv, "train.py"), env) == count


@pytest.mark.parametrize("given", ["0", "-1", "20000", "many", "2.5", ""])
def test_senseless_numbers_of_workers(given: str) -> None:
    if given == "":
        assert flags.worker_count(parse(f"--nproc-per-node={given}", "train.py"), {}) == 1
        return
    with pytest.raises(UsageError):
        flags.worker_count(parse(f"--nproc-per-node={given}", "train.py"), {})


@pytest.mark.parametrize(
    ("given", "most", "least"),
    [("1", 1, None), ("2", 2, None), ("1:4", 4, 2), ("2:3", 3, 4), ("2:2", 2, None)],
)
def test_number_of_nodes(given: str, most: int, least: int | None) -> None:
    options = parse("--nnodes", given, "--nproc-per-node", "2", "train.py")
    assert flags.node_count(options, {}) == most
    assert flags.least_workers(options, {}) == least
    assert flags.least_workers(parse("--min-workers", "3", "train.py"), {}) == 3


@pytest.mark.parametrize("given", ["0", "4:2", "x", ":2"])
def test_senseless_numbers_of_nodes(given: str) -> None:
    with pytest.raises(UsageError):
        flags.node_count(parse("--nnodes", given, "train.py"), {})


def test_restarts_from_the_environment() -> None:
    options = parse("train.py")
    assert flags.restarts(options, {}) is None
    assert flags.restarts(options, {"MAX_RESTARTS": "7"}) == 7
    assert flags.restarts(parse("--max-restarts", "0", "train.py"), {"MAX_RESTARTS": "7"}) == 0
    with pytest.raises(UsageError):
        flags.restarts(options, {"MAX_RESTARTS": "lots"})


def test_shown_ranks() -> None:
    assert flags.shown_ranks(parse("train.py")) is None
    assert flags.shown_ranks(parse("--local_ranks_filter", "0,2", "train.py")) == {0, 2}
    with pytest.raises(UsageError):
        flags.shown_ranks(parse("--local-ranks-filter", "a", "train.py"))


@pytest.mark.parametrize(
    "argv", [[], ["--no-such", "x.py"], ["--spawn", "tepid", "x.py"], ["-m", "--no-python", "x"]]
)
def test_mistakes_are_usage_errors(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        flags.parse("run", argv)


@pytest.mark.parametrize(
    ("words", "resume"),
    [
        (["--resume", "train.py", "auto"], "auto"),
        (["--resume", "auto", "train.py", "auto"], "auto"),
        (["--resume", "no", "train.py", "auto"], "no"),
        (["--resume=no", "train.py", "auto"], "no"),
        (["train.py", "auto"], None),
    ],
)
def test_resume_may_stand_alone(words: list[str], resume: str | None) -> None:
    options = flags.parse("run", words)
    assert (options.resume, options.script, options.script_args) == (resume, "train.py", ["auto"])
