"""`loom top` shows whole columns or none of them."""

from __future__ import annotations

import pytest

from torchloom.cli.top.rows import JOB_COLUMNS, Row, only, that_fit

ROWS: list[Row] = [
    (
        "sweep",
        ("sweep-with-a-longer-name", "waiting", "999/2000", "100.0/s", "–", "10 s", "0/15", "99.8%", "0"),
    ),
]


@pytest.mark.parametrize(
    ("width", "dropped"),
    [
        (0, set()),
        (140, set()),
        (94, set()),
        (93, {"RESTARTS"}),
        (83, {"RESTARTS", "GOODPUT"}),
        (60, {"RESTARTS", "GOODPUT", "WORKERS", "ETA"}),
    ],
)
def test_a_column_without_room_is_dropped(width: int, dropped: set[str]) -> None:
    shown = that_fit(ROWS, width)
    assert set(JOB_COLUMNS) - set(shown) == dropped
    assert shown == tuple(name for name in JOB_COLUMNS if name in shown), "in their order"
    ((_, cells),) = only(shown, ROWS)
    assert len(cells) == len(shown) and cells[0] == "sweep-with-a-longer-name"
    needed = sum(2 + max(len(name), len(cell)) for name, cell in zip(shown, cells, strict=True))
    assert not width or needed <= width


def test_without_jobs_the_columns_stay() -> None:
    assert that_fit([], 80) == JOB_COLUMNS
