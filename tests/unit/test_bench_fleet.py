"""The simulated fleet (bench/support/fleet_model.py): published failures, measured times, seeds."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MEASURED: dict[str, Any] = json.loads((ROOT / "bench" / "measured_times.json").read_text())


@pytest.fixture(scope="module")
def model() -> Any:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        from support import fleet_model

        return fleet_model
    finally:
        sys.path.remove(str(ROOT / "bench"))


def launcher(model: Any, **changes: Any) -> Any:
    plain = model.Launcher("x", {"crash": 1.0, "hang": 60.0, "host": 60.0}, 10.0, 1.0, 60.0, 5.0, 0.2)
    return dataclasses.replace(plain, **changes)


def test_the_published_failures_are_all_there(model: Any) -> None:
    assert sum(count for _, count, _ in model.LLAMA3) == 419
    assert model.rate_per_s(model.FleetRun()) == pytest.approx(419 / (54 * 86_400))


def test_every_measured_time_is_quoted_from_a_page_that_names_its_command() -> None:
    found = [one for of in ("torchloom", "torchrun") for one in MEASURED[of].values()]
    assert len(found) == 10
    for one in found:
        page = (ROOT / one["page"]).read_text()
        assert one["quote"] in page, f"{one['page']} no longer says {one['quote']!r}: adapt both"
        assert one["command"] in page and (ROOT / one["command"]).is_file()
        recovered = re.search(r"(\d+) of (\d+)", one["quote"])
        share = int(recovered[1]) / int(recovered[2]) if recovered else None
        assert f"{one['value']:g}" in one["quote"] or one["value"] == share, one


def test_a_seed_gives_the_same_run_and_another_one_another(model: Any) -> None:
    run, one = model.FleetRun(), launcher(model)
    assert model.simulate(run, one, 7) == model.simulate(run, one, 7)
    assert model.simulate(run, one, 7) != model.simulate(run, one, 8)


def test_interruptions_follow_the_published_rate_and_the_size(model: Any) -> None:
    def mean(ranks: int) -> float:
        run = model.FleetRun(ranks=ranks)
        return sum(model.simulate(run, launcher(model), seed).interruptions for seed in range(40)) / 40

    assert mean(16_384) == pytest.approx(419, rel=0.05)
    assert mean(8_192) == pytest.approx(419 / 2, rel=0.05)


def test_without_failures_only_saving_costs(model: Any) -> None:
    run = model.FleetRun(scale=0.0)
    lost = model.simulate(run, launcher(model), 1)
    assert lost.interruptions == 0 and lost.total_s == pytest.approx(lost.saving_s)
    assert lost.effective(run.days) == pytest.approx(1 - 0.2 / 600)


@pytest.mark.parametrize(
    "worse",
    [
        {"notice_s": {"crash": 30.0, "hang": 600.0, "host": 600.0}},
        {"restart_s": 100.0},
        {"restore_s": 50.0},
        {"recovered_share": 0.6},
        {"save_blocks_s": 2.0},
    ],
)
def test_what_takes_longer_costs_more(model: Any, worse: dict[str, Any]) -> None:
    run = model.FleetRun()
    for seed in range(5):
        good = model.simulate(run, launcher(model), seed)
        bad = model.simulate(run, launcher(model, **worse), seed)
        assert bad.effective(run.days) < good.effective(run.days)


def test_a_checkpoint_is_never_older_than_the_run_since_the_last_start(model: Any) -> None:
    run = model.FleetRun(save_every_s=10**9, scale=20.0)
    lost = model.simulate(run, launcher(model), 3)
    assert lost.repeated_s < run.days * 86_400 and lost.effective(run.days) >= 0.0
