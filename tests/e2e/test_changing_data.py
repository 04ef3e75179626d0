"""`loom set JOB batch_size=… transforms=…`: from one batch on, on all ranks, whatever was read ahead."""

from __future__ import annotations

from pathlib import Path

from stack import Stack, lines_of, wait_until

Row = tuple[int, int, int, float]


def rows(out: Path, rank: int) -> list[Row]:
    found = [line.split() for line in lines_of(out / f"made-{rank}")]
    return [(int(f[0]), int(f[1]), int(f[2]), float(f[3])) for f in found if len(f) == 4]


def test_batch_and_transforms_are_set_on_all_ranks_at_one_step(stack: Stack, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = stack.submit("changing.py", str(out), workers=2)
    wait_until(lambda: len(rows(out, 0)) > 20, "it trains")
    stack.steer("set", job, "batch_size=12", "transforms=plus,times")
    wait_until(lambda: any(row[1] == 12 for row in rows(out, 0)), "the new batch")
    assert "times" in stack.loom("config", job).stdout
    stack.steer("set", job, 'transforms=["times", {"plus": {"by": 3}}]')
    wait_until(lambda: any(row[3] == 3 for row in rows(out, 0)), "the new order")
    for refused in ("transforms=blur", "batch_size=0"):
        assert stack.loom("set", job, refused, check=2).stderr, "before any rank hears of it"
    assert "rank" in stack.loom("set", job, "batch_size=1", check=5).stderr, (
        "as many as ranks, only they know"
    )
    seen = len(rows(out, 0))
    wait_until(lambda: len(rows(out, 0)) > seen + 20, "it goes on after what was refused")
    stack.loom("stop", job)
    first, second = rows(out, 0), rows(out, 1)
    together = list(zip(first, second, strict=False))
    assert all(a[:2] == b[:2] and a[3] == b[3] for a, b in together), "alike on both ranks at every step"
    kinds = [(row[1], row[3]) for row in first]
    changes = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    assert changes == [(8, 1.0), (12, 10.0), (12, 3.0)]
