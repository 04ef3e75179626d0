"""What bench/peers.py measured becomes one table of README; what was not measured is left empty or said."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    before = set(sys.modules)
    from support import peer_table, table

    yield peer_table, table
    for name in set(sys.modules) - before:
        if name.startswith("support"):
            del sys.modules[name]


def launcher(name: str, back: float | None, share: str, cannot: str = "") -> dict[str, Any]:
    return {
        "launcher": name, "version": "1.2", "n": 3, "start_s": 2.5, "start_worst_s": 12.3, "recovered": share,
        "recover_s": back, "recover_worst_s": back, "hang named": "0 of 3", "named_s": None,
        "named_worst_s": None, "cannot": cannot,
    }  # fmt: skip


def test_all_parts_become_one_table(bench: Any) -> None:
    peers, table = bench
    found = {
        "launchers": table.Table(
            "",
            [launcher("torchloom", 0.151, "3 of 3"), launcher("torchrun", None, "0 of 3", "see a hang")],
            ["Ray Train: left out, no environment: run with --make"],
        ),
        "torchft": table.Table(
            "",
            [
                {"launcher": who, "case": "back in quorum", "n": 3, "median_s": 4.2, "worst_s": 5.0,
                 "survivor kept": "3/3"}
                for who in ("stock", "torchloom")
            ],
        ),
        "saves": table.Table(
            "",
            [
                {"method": "loom, disk and memory tier", "state_mb": 390, "blocking_s": 0.12},
                {"method": "DCP save", "state_mb": 400, "blocking_s": 1.94},
            ],
        ),
        "collectives": table.Table(
            "",
            [
                {"recorder": name, "n": 3, "extra µs": extra, "worst extra µs": 2 * extra}
                for name, extra in (("nothing", 0.0), ("torchloom", 1.5), ("torch.profiler", 25.0))
            ],
        ),
    }  # fmt: skip
    lines = peers.lines_of(found, "2.13", "torchft-nightly 1")
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("|")}
    ours = "| **torchloom** | 1.2 | 3 | 2.5 (12) | 0.15 (0.15), 3 of 3 | 0 of 3 | 0.12 | 1.5 µs (3.0) |"
    assert rows["**torchloom**"].startswith(ours)
    assert rows["torchrun"] == "| torchrun | 1.2 | 3 | 2.5 (12) | 0 of 3 | 0 of 3 |  |  | see a hang |"
    assert "| 4.2 (5.0), survivors kept 3/3 |" in rows["torchft"]
    assert "| 1.9 |" in rows["DCP save"] and "| 25.0 µs (50.0) |" in rows["torch.profiler"]
    assert "Ray Train: left out, no environment: run with --make." in lines[0]
    assert len({line.count("|") for line in rows.values()}) == 1, "every row has every cell"


def test_readme_has_a_place_for_it(bench: Any, tmp_path: Path) -> None:
    _, table = bench
    page = tmp_path / "README.md"
    page.write_text((ROOT / "README.md").read_text())
    table.put(page, "peers", ["| new |"])
    assert "| new |" in page.read_text() and "## What it promises" in page.read_text()
