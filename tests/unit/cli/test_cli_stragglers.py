"""What `loom stragglers` says above its table is what the table says."""

from __future__ import annotations

import random

import pytest
from detect_windows import stepping
from msgspec.structs import replace

from torchloom.api.routes.stragglers import view_of
from torchloom.cli.fleet.stragglers import show
from torchloom.core.detect.cost import per_rank
from torchloom.model.windows import RankWindow


def own(seed: int, factor: float = 1.0) -> list[float]:
    chance = random.Random(seed)
    return [0.3 * factor * chance.lognormvariate(0, 0.02) for _ in range(32)]


def ranks_of(slow: int, factor: float, step_s: float, first: int, role: str) -> list[RankWindow]:
    """Four ranks of a role, one of them late."""
    made = [stepping(r, own(r, factor if r == slow else 1.0), step_s=step_s) for r in range(first, first + 4)]
    return [replace(window, role=role) for window in made]


@pytest.mark.parametrize(
    "windows",
    [
        ranks_of(2, 1.8, 0.8, 0, ""),
        # Ranks of two roles, whose steps take different times: no number of one goes with one of the other.
        [*ranks_of(1, 1.8, 1.2, 0, "generator"), *ranks_of(6, 3.0, 0.95, 4, "critic")],
    ],
)
def test_the_sentence_and_the_table_are_one_computation(
    windows: list[RankWindow], capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [view_of(one, "n").model_dump() for one in per_rank(windows)]
    show({"job": "j", "generation": 1, "stands": "", "missing": [], "ranks": ranks, "steps_per_s": None})
    said, _, head, _, first = capsys.readouterr().out.splitlines()[:5]
    rank, faster = said.split("without rank ")[1].split(" it would be ")
    columns = [name.strip() for name in head.split("  ") if name.strip()]
    cells = [cell.strip() for cell in first.split("  ") if cell.strip()]
    row = dict(zip(columns, cells, strict=False))
    assert row["RANK"] == rank and row["WITHOUT IT"] == faster
    lost = float(row["COSTS"].split("/s")[0])
    now = float(said.split(": ")[1].split("/s")[0])
    assert float(faster.removesuffix("/s")) == pytest.approx(now + lost, abs=0.11)
