"""The tables that bench/detect.py writes into docs/detection.md: from results to the page, and again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tables() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "bench"))
    yield importlib.import_module("detecting.docs_tables")
    sys.path.remove(str(ROOT / "bench"))


def run(case: str, right_s: float | None, **more: Any) -> dict[str, Any]:
    told = [] if right_s is None else [{"kind": "hang", "ranks": [1]}]
    return {"type": "fault", "case": case, "size": 2, "rank": 1, "right_s": right_s, "told": told, **more}


def test_results_become_a_table_with_what_was_not_right(tables: Any) -> None:
    found = [
        run("kill", 0.1, exited=True, load=1.0),
        run("stop", 2.5, load=3.4),
        run("hang", None),
        run("sleeps", 2.2, false_restart=True),
    ]
    text = "\n".join(tables.host(found))
    assert "4 runs with 2 workers, load average 1–3" in text
    assert (
        "| a rank dies, or leaves while others train | 1 | 1 of 1 (21–100 %) | 0.1 (0.1) | 0 | sees 1 |"
        in text
    )
    absent = next(line for line in text.splitlines() if "does not come" in line)
    assert "| 2 | 1 of 2" in absent and absent.endswith("| sees none | ends 2, names no rank |")
    assert "* `hang`, 2 workers: nothing was reported (rank 1 has the fault)" in text
    assert "* `sleeps`, 2 workers" in text and "**restarted**" in text, "a false restart is never right"
    assert "| **all** | 4 | 2 of 4" in text


def test_every_case_belongs_to_a_row(tables: Any) -> None:
    named = {name for name, _ in tables._KINDS}
    assert {tables._kind(case) for case in tables.CASES.values()} == named


def test_a_table_replaces_the_one_of_its_name_and_nothing_else(tables: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- host table -->\nold\n<!-- end of host table -->\nafter\n")
    for lines in (["| a |"], ["| b |", "| c |"]):
        tables.put(page, "host", lines)
    assert page.read_text() == (
        "before\n<!-- host table -->\n\n| b |\n| c |\n\n<!-- end of host table -->\nafter\n"
    )
    with pytest.raises(SystemExit, match="has no lines <!-- device table -->"):
        tables.put(page, "device", ["| d |"])


@pytest.mark.parametrize("name", ["host", "device"])
def test_the_page_has_a_place_for_both(tables: Any, tmp_path: Path, name: str) -> None:
    page = tmp_path / "detection.md"
    page.write_text((ROOT / "docs/detection.md").read_text())
    tables.put(page, name, ["| new |"])
    assert "| new |" in page.read_text()
