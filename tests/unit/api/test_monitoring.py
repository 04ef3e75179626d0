"""Shipped alert rules and the dashboard name only metrics and states that there are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchloom.api.routes.prometheus import lines
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.model.fleet import JobState, NodeState
from torchloom.weaver.service import Weaver

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "torchloom.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "torchloom.json"
BOTH = pytest.mark.parametrize("file", [RULES, DASHBOARD], ids=lambda path: path.name)


def exposition() -> str:
    return "".join(lines(Weaver(MemoryBus(MemoryHub())), "0", 0))


def metrics() -> set[str]:
    return set(re.findall(r"^# HELP (\w+)", exposition(), re.MULTILINE))


@BOTH
def test_every_metric_exists(file: Path) -> None:
    used = set(re.findall(r"\bloom_\w+", file.read_text()))
    assert used and used <= metrics()


@BOTH
def test_every_state_exists(file: Path) -> None:
    text = file.read_text().replace('\\"', '"')
    for metric, states in (("loom_jobs", JobState), ("loom_nodes", NodeState)):
        used = set(re.findall(rf'{metric}{{state="(\w+)"}}', text))
        assert used and used <= {str(state) for state in states}


def test_the_dashboard_is_made_by_its_script() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "make_dashboard.py"), "--check"]
    assert subprocess.run(command).returncode == 0, "run python scripts/make_dashboard.py"


def promtool() -> str:
    """Where promtool is; without it these tests are skipped, and in CI they fail."""
    beside = Path(sys.executable).with_name("promtool")
    found = str(beside) if beside.is_file() else shutil.which("promtool")
    if found is None:
        why = "promtool is not here (bash scripts/get_promtool.sh)"
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)
    return found


@pytest.mark.parametrize(
    "args", [("check", "rules", RULES), ("test", "rules", RULES.with_suffix(".test.yml"))], ids=lambda a: a[0]
)
def test_promtool_accepts_the_rules(args: tuple[str, str, Path]) -> None:
    done = subprocess.run([promtool(), *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_metrics() -> None:
    done = subprocess.run(
        [promtool(), "check", "metrics"], input=exposition(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
