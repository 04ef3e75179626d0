"""`loom ps`: active jobs first, one line each, and the columns that matter at any width.

The pictures are kept as files, so that a change of them is looked at: `LOOM_GOLDEN=write` writes them anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from torchloom.cli.jobs import ps
from torchloom.cli.show import output

GOLDEN = Path(__file__).parent / "golden"
LONG = (
    "rank 3 on node-b (GPU-7f3a) exited with code 1 at step 4120: RuntimeError: CUDA error: illegal memory "
    "access was encountered\nCUDA kernel errors might be asynchronously reported"
)


def job(id: str, state: str = "running", **changes: Any) -> Any:
    return {
        "id": id,
        "state": state,
        "ended": state in ("completed", "failed", "stopped"),
        "running_workers": 8,
        "wanted_workers": 8,
        "step": 4120,
        "total_steps": 20000,
        "steps_per_s": 12.3,
        "last_loss": 2.3187,
        "eta_s": 1291.0,
        "restarts": 1,
        "goodput": 0.987,
        "elapsed_s": 340.0,
        "config_version": 0,
        "reason": "generation 2: all 8 workers run",
        "paused": False,
    } | changes


JOBS = [
    job("pretrain-3f9a", "completed", running_workers=0, eta_s=None, steps_per_s=0.0, step=20000),
    job("llama-finetune-long-name"),
    job("ablation-1", "failed", running_workers=0, eta_s=None, steps_per_s=0.0, reason=LONG),
    job(
        "queued",
        "waiting",
        running_workers=0,
        step=0,
        last_loss=None,
        eta_s=None,
        steps_per_s=0.0,
        total_steps=None,
        goodput=None,
        reason="needs 2 nodes with room for 8 more workers each; 0 of 2 connected nodes have it",
    ),
    job("recovering", "backoff", running_workers=0, steps_per_s=0.0, reason=LONG, config_version=3),
]


def shown(jobs: list[Any], width: int, capsys: Any, monkeypatch: Any, ended_too: bool = False) -> str:
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((width, 24)))
    ps._show(jobs, ended_too)
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("ended_too", [False, True])
def test_at_every_width(width: int, ended_too: bool, capsys: Any, monkeypatch: Any) -> None:
    text = shown(JOBS, width, capsys, monkeypatch, ended_too)
    assert max(map(len, text.splitlines())) <= width, text
    rows = [line for line in text.splitlines()[2:] if not line.startswith(("LOSS", "2 ended"))]
    active = ["llama-finetune-long-name", "queued", "recovering"]
    names = active + (["pretrain-3f9a", "ablation-1"] if ended_too else [])
    assert [row.split()[0] for row in rows] == names, "active ones first, one line each"
    if width >= 100:
        assert all(name in text.splitlines()[0] for name in ("STEP", "SPEED", "LOSS", "ETA"))
    golden = GOLDEN / f"ps-{'all' if ended_too else 'active'}-{width}.txt"
    if os.environ.get("LOOM_GOLDEN") == "write":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_ended_jobs_are_counted(capsys: Any, monkeypatch: Any) -> None:
    assert "2 ended jobs: `loom ps -a` shows them" in shown(JOBS, 100, capsys, monkeypatch)
    only_ended = shown(JOBS[:1], 100, capsys, monkeypatch)
    assert only_ended == "no active jobs\n1 ended job: `loom ps -a` shows it\n"
    ps._show([], False, only_active=True)
    assert capsys.readouterr().out == "no active jobs\n", "`ps --active`, whatever has ended"
    assert "start one with `loom run" in shown([], 100, capsys, monkeypatch)


def test_a_missing_loss_has_a_hint(capsys: Any, monkeypatch: Any) -> None:
    assert "loom.log(loss=…)" not in shown([job("a")], 100, capsys, monkeypatch)
    assert "loom.log(loss=…)" in shown([job("a", last_loss=None)], 100, capsys, monkeypatch)
