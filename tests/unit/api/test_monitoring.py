"""Shipped alert rules and the dashboard name only metrics and states that there are."""

from __future__ import annotations

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


def metrics() -> set[str]:
    text = "".join(lines(Weaver(MemoryBus(MemoryHub())), "0", 0))
    return set(re.findall(r"^# HELP (\w+)", text, re.MULTILINE))


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


def test_promtool_takes_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    for verb, file in (("check", RULES), ("test", RULES.with_suffix(".test.yml"))):
        done = subprocess.run([promtool, verb, "rules", str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
