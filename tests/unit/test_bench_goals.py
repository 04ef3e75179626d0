"""`make bench` says which goals are met, missed or not measured, and keeps people's text (bench/suite.py)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)
    import suite

    yield suite
    for name in set(sys.modules) - before:
        if name == "suite" or name.startswith("support"):
            del sys.modules[name]


def result(name: str, rows: list[dict[str, Any]], title: str = "") -> dict[str, Any]:
    return {
        "name": name, "arguments": [], "at": "2026-01-01", "seconds": 1.0, "load": 0.5, "machine": "m",
        "trouble": "", "tables": [{"bench": title, "rows": rows, "notes": ["as measured"]}],
    }  # fmt: skip


def verdicts(suite: Any, *results: dict[str, Any]) -> dict[str, tuple[float | None, str]]:
    found = suite.judged({one["name"]: one for one in results})
    return {goal.what: (figure, verdict) for goal, figure, verdict in found}


def test_every_benchmark_of_the_repository_is_run(suite: Any) -> None:
    there = {path.stem for path in BENCH.glob("*.py")} - {"suite"}
    assert {bench.name for bench in suite.all_benches()} == there
    assert {bench.name for bench in suite.BENCHES} <= there
    assert {goal.bench for goal in suite.GOALS} <= there
    assert sum(b.short_s for b in suite.BENCHES if b.short is not None) <= suite.SHORT_S


def test_a_goal_is_met_or_missed_or_not_measured(suite: Any) -> None:
    start = [{"what": "torchrun", "median_s": 6.0}, {"what": "loom run, from nothing", "median_s": 4.0}]
    found = verdicts(suite, result("start", start), result("rebalance", [{"of_perfect": 0.91}]))
    assert found["`loom run` from nothing, times as fast as torchrun"] == (1.5, "missed")
    assert found["one of four workers 2 × slower, speed in parts of perfect balance"] == (0.91, "met")
    assert found["SIGKILL → first step, plain DDP, median"] == (None, "not measured")


def test_the_worst_row_decides(suite: Any) -> None:
    states = [
        {"state_mb": size, "method": method, "copies": copies, "total_s": total, "restore_s": restore,
         "new_process_s": 1.0}
        for size, method, copies, total, restore in (
            (400, "loom, S3", 1.1, 2.0, 1.0), (400, "S3, plain parallel client", 0.0, 1.8, 0.9),
            (2000, "loom, S3", 1.39, 10.0, 4.0), (2000, "S3, plain parallel client", 0.0, 5.0, 3.6),
        )
    ]  # fmt: skip
    found = verdicts(suite, result("checkpoint", states))
    assert found["blocking time of a save, worst row, in copies of the state"] == (1.39, "missed")
    assert found["save to S3, in parts of a plain parallel client"] == (0.5, "missed")
    assert found["load from S3, in parts of a plain parallel client"] == (0.9, "met")


def test_what_a_benchmark_prints_becomes_tables(suite: Any) -> None:
    table = {"bench": "a", "rows": [{"x": 1}], "notes": []}
    out = "\n".join(["some words", json.dumps(table), json.dumps([{"y": 2, "by": {"z": 1}}]), "12"])
    assert suite.tables_in(out) == [table, {"bench": "", "rows": [{"y": 2}], "notes": []}]


def test_the_tables_are_replaced_and_peoples_text_is_kept(suite: Any, tmp_path: Path) -> None:
    path = tmp_path / "measurements.md"
    path.write_text("# Measurements\n\nWhat we learned.\n")
    for share in (0.5, 0.75):
        suite.render(path, {"rebalance": result("rebalance", [{"of_perfect": share}])})
        path.write_text(path.read_text() + ("More text.\n" if share == 0.5 else ""))
    text = path.read_text()
    assert text.startswith("# Measurements\n\nWhat we learned.\n") and text.endswith("More text.\n")
    assert "0.75" in text and "0.5 |" not in text and text.count("## Goals") == 1
    assert "**missed**" in text and "* as measured" in text


def test_a_benchmark_that_fails_or_hangs_is_a_result_too(suite: Any, monkeypatch: pytest.MonkeyPatch,
                                                         tmp_path: Path) -> None:  # fmt: skip
    monkeypatch.setattr(suite, "HERE", tmp_path)
    (tmp_path / "fails.py").write_text("raise SystemExit(3)")
    (tmp_path / "hangs.py").write_text("import time; time.sleep(600)")
    failed = suite.run(suite.Bench("fails"), True, 60.0)
    assert failed["trouble"] == "ended with 3" and failed["tables"] == []
    assert "ended after" in suite.run(suite.Bench("hangs"), True, 0.5)["trouble"]
