"""The judge of the storm (bench/support/verdict.py) sees what is wrong, or its silence proves nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "bench" / "support" / "verdict.py"


@pytest.fixture(scope="module")
def verdict() -> Any:
    spec = importlib.util.spec_from_file_location("bench_verdict", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def told(version: int, values: dict[str, float], at_step: int | None, generation: int = 1) -> dict[str, Any]:
    state = "applied" if at_step else "not applied"
    return {
        "version": version,
        "values": values,
        "state": state,
        "at_step": at_step,
        "generation": generation,
        "reason": "",
    }


def steps(*used: float) -> dict[int, tuple[float, ...]]:
    return {number: (value,) for number, value in enumerate(used, 1)}


OUTCOMES = [
    told(1, {"lr": 1.0}, 2),
    told(2, {"lr": 2.0}, None),
    told(3, {"lr": 3.0}, 2),
    told(4, {"lr": 4.0}, 4),
]
GOOD = {1: {0: steps(0, 3, 3, 4), 1: steps(0, 3, 3)}, 2: {0: steps(4, 4), 1: steps(4)}}


def test_what_was_told_is_what_was_used(verdict: Any) -> None:
    found = verdict.judge(GOOD, ["lr"], (0.0,), OUTCOMES)
    assert (found.apart, found.contradicted, found.steps, found.generations) == ([], [], 10, 2)


@pytest.mark.parametrize(
    ("log", "apart", "contradicted"),
    [
        ({1: {0: steps(0, 3, 3, 4), 1: steps(0, 0, 3)}}, 1, 1),  # one rank is a step late
        ({1: {0: steps(0, 0, 3, 4), 1: steps(0, 0, 3)}}, 0, 2),  # both are, which is not what was told
        ({1: {0: steps(0, 3, 3, 4), 1: steps(0, 3, 3, 3)}}, 1, 1),  # never on one rank
        ({1: {0: steps(0, 3, 2, 4), 1: steps(0, 3, 2)}}, 0, 3),  # what was not applied was used
        ({1: {0: steps(0, 3)}, 2: {0: steps(3, 3)}}, 0, 2),  # the next generation begins with an old value
        ({1: {0: {1: (0.0,), 3: (3.0,)}}}, 0, 1),  # a step is missing
    ],
)
def test_what_is_wrong_is_found(verdict: Any, log: Any, apart: int, contradicted: int) -> None:
    found = verdict.judge(log, ["lr"], (0.0,), OUTCOMES)
    assert (len(found.apart), bool(found.contradicted)) == (apart, bool(contradicted))
    assert len(found.contradicted) >= contradicted


def test_ranks_that_diverged_are_found(verdict: Any) -> None:
    outcomes = [{**told(1, {"lr": 1.0}, 2), "state": "diverged"}]
    assert verdict.judge({1: {0: steps(0)}}, ["lr"], (0.0,), outcomes).contradicted


def test_notes_are_read_without_a_torn_line(verdict: Any, tmp_path: Path) -> None:
    (tmp_path / "2.1.4711").write_text("1 0.1 0.0\n2 0.2 0.0\n3 0.")
    assert verdict.read_notes(tmp_path) == {2: {1: {1: (0.1, 0.0), 2: (0.2, 0.0)}}}
