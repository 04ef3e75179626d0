"""The simulated accelerator behaves like one: it computes like the CPU, and it runs behind its host.

Two real ranks, one start for all of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forked import Forked

from torchloom.chaos import accelerator

PROGRAM = Path(__file__).parent / "accelerator" / "device.py"
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def told(ranks: Forked, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    made = accelerator.build()
    if made.library is None:
        pytest.skip(f"no simulated accelerator here: {made.detail or made.outcome.value}")
    started = ranks.start(
        PROGRAM, [["collectives,training,behind,faults"]] * 2, tmp_path_factory.mktemp("device")
    )
    return [json.loads(printed.splitlines()[-1]) for printed in started.printed()]


def test_torch_names_it(told: list[dict[str, Any]]) -> None:
    assert [rank["accelerator"] for rank in told] == ["loomsim", "loomsim"]


def test_collectives_give_what_gloo_gives(told: list[dict[str, Any]]) -> None:
    assert [rank["collectives"] for rank in told] == [{"same": True, "count": 8}] * 2


def test_training_ends_with_the_weights_of_the_cpu(told: list[dict[str, Any]]) -> None:
    assert all(rank["training"]["same"] for rank in told)
    assert told[0]["training"]["weights"] == told[1]["training"]["weights"]


def test_the_host_runs_ahead(told: list[dict[str, Any]]) -> None:
    for rank in told:
        behind = rank["behind"]
        assert behind["ahead"] == [False, False, False]
        assert behind["future"] and behind["pending"]
        assert behind["value"] == 16
        assert behind["over"] == [True, True, True]
        assert behind["busy"] >= 1


def test_faults_show(told: list[dict[str, Any]]) -> None:
    for rank in told:
        faults = rank["faults"]
        assert faults["failed"] and faults["stalled"] and faults["went on"]
        assert "device lost" in faults["lost"]
