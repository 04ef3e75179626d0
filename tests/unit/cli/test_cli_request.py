"""What a job is given of its caller's surroundings, and what it is not."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from torchloom.cli.jobs import flags
from torchloom.cli.jobs.request import interpreter, job_name, job_request
from torchloom.errors import NotFound, UsageError
from torchloom.model.ids import check_token


def parse(*argv: str) -> Namespace:
    return flags.parser("run").parse_args(list(argv))


def test_a_whole_request(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    options = parse("--nproc-per-node=2", "--preload", "a,b", "--preload", "c", "train.py", "--lr", "1")
    body = job_request(options, {"HOME": "/h"}, str(tmp_path))
    assert body["program"] == {"kind": "script", "target": "train.py", "args": ["--lr", "1"]}
    assert body["workers_per_node"] == 2 and body["nodes"] == 1 and body["cwd"] == str(tmp_path)
    assert body["preload"] == ["a", "b", "c"] and body["env"] == {"HOME": "/h"}
    assert body["max_restarts"] is None and body["interpreter"] == sys.executable


def test_settings_of_the_callers_environment(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    env = {
        "JOB_ID": "nightly",
        "WORLD_SIZE": "3",
        "MAX_RESTARTS": "2",
        "HEARTBEAT_TIMEOUT": "7.5",
        "CHECKPOINT_DIR": "s3://bucket/ckpt",
        "CHECKPOINT_EVERY": "50",
    }
    body = job_request(parse("train.py"), env, str(tmp_path))
    assert (body["name"], body["workers_per_node"], body["max_restarts"]) == ("nightly", 3, 2)
    assert body["limits"] == {"heartbeat_timeout_s": 7.5}
    assert body["checkpoint"] == {"directory": "s3://bucket/ckpt", "every": 50}
    assert body["env"] == env, "workers see them too"
    assert "limits" not in job_request(parse("train.py"), {}, str(tmp_path))


def test_limits_and_policy_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "calm.toml").write_text('dry_run = true\n[rules.hang]\ncertain = "report"\n')
    options = parse("--hang-report", "5", "--hang-act", "60", "--policy", "calm.toml", "train.py")
    body = job_request(options, {"HEARTBEAT_TIMEOUT": "7.5"}, str(tmp_path))
    assert body["limits"] == {"heartbeat_timeout_s": 7.5, "hang_report_s": 5, "hang_act_s": 60}
    assert body["policy"] == {"dry_run": True, "rules": {"hang": {"certain": "report"}}}


@pytest.mark.parametrize("text", ["dry_run = maybe", "[rules.hang]\ncertain = 'evct'", "colour = 1"])
def test_a_policy_that_cannot_be_read_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(UsageError, match=r"bad\.toml"):
        job_request(parse("--policy", "bad.toml", "train.py"), {}, str(tmp_path))
    for every in ("auto", "10s", "each epoch"):
        body = job_request(parse("train.py"), {"CHECKPOINT_EVERY": every}, str(tmp_path))
        assert body["checkpoint"] == {"directory": None, "every": None}
    with pytest.raises(UsageError, match="HEARTBEAT_TIMEOUT must be a number of seconds"):
        job_request(parse("train.py"), {"HEARTBEAT_TIMEOUT": "soon"}, str(tmp_path))


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no\.py"):
        job_request(parse("no.py"), {}, str(tmp_path))
    with pytest.raises(UsageError, match="directory"):
        job_request(parse("."), {}, str(tmp_path))
    with pytest.raises(NotFound, match="no-such-program"):
        job_request(parse("--no-python", "no-such-program"), {}, str(tmp_path))


def test_elsewhere_only_the_agent_can_tell(tmp_path: Path) -> None:
    body = job_request(parse("no.py"), {"LOOM_ADDRESS": "far:1"}, str(tmp_path))
    assert body["program"]["target"] == "no.py"


def test_names() -> None:
    assert job_name(parse("--name", "mine", "x.py"), {"JOB_ID": "other"}) == "mine"
    assert job_name(parse("x.py"), {"JOB_ID": "other"}) == "other"
    made = job_name(parse("some/My_Train.v2.py"), {})
    assert made.startswith("my-train-v2-") and job_name(parse("some/My_Train.v2.py"), {}) != made
    many = {job_name(parse("train.py"), {}) for _ in range(1000)}
    assert len(many) > 998, "names of two random bytes met eight times among a thousand jobs"
    long = job_name(parse(f"{'x' * 300}.py"), {})
    assert check_token(long, "job name") == long
    assert job_name(parse("-m", "pkg.train"), {}).startswith("train-")
    with pytest.raises(UsageError):
        job_name(parse("--name", "Not Valid", "x.py"), {})


def test_the_interpreter_is_the_active_environments(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    assert interpreter(None, {"VIRTUAL_ENV": str(tmp_path)}) == str(python)
    assert interpreter(None, {"VIRTUAL_ENV": str(tmp_path / "gone")}) == sys.executable
    assert interpreter(sys.executable, {"VIRTUAL_ENV": str(tmp_path)}) == sys.executable
    with pytest.raises(NotFound):
        interpreter("/no/such/python", {})
