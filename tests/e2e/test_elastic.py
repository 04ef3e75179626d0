"""Elastic numerics: a training resized 4 → 3 → 5 beside a fixed one, while batch and transforms change."""

from __future__ import annotations

from pathlib import Path

import pytest
from stack import Stack


def train(stack: Stack, out: Path, *lives: tuple[int, int]) -> list[tuple[int, float, float]]:
    """Lives of (ranks, last step); (step, loss, factor of the learning rate) of every step."""
    out.mkdir()
    for world, until in lives:
        job = stack.submit("elastic.py", str(out), "--until", str(until), workers=world)
        status = stack.wait_state(job, "completed", "failed")
        assert status["state"] == "completed", stack.loom("logs", job).stdout[-3000:]
    rows = [line.split() for line in (out / "loss").read_text().splitlines()]
    return [(int(step), float(loss), float(factor)) for step, loss, factor in rows]


def batches(out: Path) -> dict[int, list[int]]:
    """The samples of every global batch, whichever ranks took them."""
    found: dict[int, list[int]] = {}
    for path in sorted(out.glob("seen-*")):
        for line in path.read_text().splitlines():
            step, _, indices = line.partition(" ")
            found.setdefault(int(step), []).extend(int(i) for i in indices.split(",") if i)
    return {step: sorted(indices) for step, indices in found.items()}


def test_four_then_three_then_five_ranks_learn_what_two_learn(stack: Stack, tmp_path: Path) -> None:
    fixed = train(stack, tmp_path / "fixed", (2, 60))
    elastic = train(stack, tmp_path / "elastic", (4, 20), (3, 38), (5, 60))
    assert batches(tmp_path / "elastic") == batches(tmp_path / "fixed")
    sizes = {len(indices) for indices in batches(tmp_path / "fixed").values()}
    assert sizes == {24, 34, 20, 30}, "the batch grew, and two epochs ended short"
    assert [step for step, _, _ in elastic] == list(range(1, 61))
    for here, there in zip(elastic, fixed, strict=True):
        assert here == pytest.approx(there, rel=1e-9), "the same but for the order of summation"
    assert fixed[-1][1] < fixed[0][1] / 3, "and it learns"
    assert fixed[24][2] == 1.0 and fixed[-1][2] == pytest.approx((34 / 24) ** 0.5)
