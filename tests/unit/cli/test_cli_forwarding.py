"""What a job gets of the shell it is submitted from, and what it does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchloom.api.defaults import PASSED_ON
from torchloom.cli.jobs import flags
from torchloom.cli.jobs.forwarding import NAMES, PREFIXES, forward
from torchloom.cli.jobs.request import job_request
from torchloom.errors import UsageError

SHELL = {
    "PATH": "/bin",
    "PYTHONPATH": "/p",
    "CUDA_VISIBLE_DEVICES": "0",
    "NCCL_DEBUG": "INFO",
    "HF_TOKEN": "h",
    "WANDB_API_KEY": "w",
    "AWS_SECRET_ACCESS_KEY": "a",
    "LOOM_HOME": "/l",
    "GITHUB_TOKEN": "g",
    "SSH_AUTH_SOCK": "s",
    "MY_DATA": "d",
    "MY_MODEL": "m",
    "PWD": "/",
    "HOSTNAME": "of the shell, not of the worker",
}
FOREIGN = {"GITHUB_TOKEN", "SSH_AUTH_SOCK", "MY_DATA", "MY_MODEL", "PWD", "HOSTNAME"}
OURS = {"LOOM_TOKEN": "t", "LOOM_NATS_PASSWORD": "p", "LOOM_ADDRESS": "a", "LOOM_STORE_SECRET": "s"}


def test_what_trainings_need_is_forwarded_and_the_rest_of_the_shell_is_not() -> None:
    found = forward(SHELL, (), False)
    assert found.env == {name: value for name, value in SHELL.items() if name not in FOREIGN}
    assert found.withheld == ["GITHUB_TOKEN", "MY_DATA", "MY_MODEL", "SSH_AUTH_SOCK"]


def test_one_can_ask_for_more() -> None:
    found = forward(SHELL, ["MY_*", "X=1", "EMPTY=", "A=b=c", "GITHUB_TOKEN"], False)
    assert {"MY_DATA": "d", "MY_MODEL": "m", "X": "1", "EMPTY": "", "A": "b=c"}.items() <= found.env.items()
    assert found.withheld == ["SSH_AUTH_SOCK"]
    assert forward(SHELL, (), True).env == SHELL and forward(SHELL, (), True).withheld == []
    assert forward(SHELL, ["PATH=/mine"], True).env["PATH"] == "/mine", "what is said wins"


@pytest.mark.parametrize(
    ("asked", "says"), [("", "names no"), ("=x", "names no"), ("MISSING", "no such variable")]
)
def test_mistakes_are_said_in_a_sentence(asked: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        forward(SHELL, [asked], False)


def test_our_own_credentials_stay_here() -> None:
    assert forward(OURS, (), True).env == {} and forward(OURS, ["LOOM_*"], True).env == {}
    for name in OURS:
        with pytest.raises(UsageError, match="own credentials"):
            forward(OURS, [name], False)


def test_what_is_not_utf_8_is_left_out() -> None:
    assert forward({"A": "\udcff", "B": "ü"}, (), True).env == {"B": "ü"}


def test_the_command_line_says_it(tmp_path: Path) -> None:
    (tmp_path / "t.py").touch()
    options = flags.parser("submit").parse_args(["--env", "MY_DATA", "--env", "X=1", "t.py", "--env", "own"])
    body = job_request(options, SHELL, str(tmp_path))
    assert body["env"]["MY_DATA"] == "d" and body["env"]["X"] == "1" and "MY_MODEL" not in body["env"]
    assert body["program"]["args"] == ["--env", "own"]
    assert "MY_MODEL" in body["env_withheld"] and "m" not in body["env_withheld"]
    everything = flags.parser("submit").parse_args(["--env-all", "t.py"])
    assert job_request(everything, SHELL, str(tmp_path))["env"] == SHELL
    foreground = flags.parser("run").parse_args(["t.py"])
    assert job_request(foreground, SHELL, str(tmp_path), whole_shell=True)["env"] == SHELL


def test_the_documented_settings_are_forwarded() -> None:
    assert all(name in NAMES or name.startswith(PREFIXES) for name in PASSED_ON)
    page = (Path(__file__).parents[3] / "docs" / "environment.md").read_text()
    for name in re.findall(r"^\| `([A-Z_0-9]+)`", page, re.MULTILINE):
        assert name in NAMES or name.startswith(PREFIXES), name


def test_the_page_names_everything_that_is_forwarded() -> None:
    page = (Path(__file__).parents[3] / "docs" / "environment.md").read_text()
    for name in NAMES:
        assert f"`{name}`" in page, name
    for prefix in PREFIXES:
        assert f"`{prefix}*`" in page, prefix
