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
from torchloom.probe import native
from torchloom.wire.blackbox import FLAG_FAILED, Source

PROGRAM = Path(__file__).parent / "accelerator" / "device.py"
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def told(ranks: Forked, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    made = accelerator.build()
    if made.library is None:
        pytest.skip(f"no simulated accelerator here: {made.detail or made.outcome.value}")
    started = ranks.start(
        PROGRAM, [["collectives,training,behind,values,faults"]] * 2, tmp_path_factory.mktemp("device")
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


def test_the_probe_reads_numbers_from_any_device_and_waits_for_none(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert rank["values"] == {"device": "loomsim", "before": [False, 0], "after": [True, True]}


def test_faults_show(told: list[dict[str, Any]]) -> None:
    for rank in told:
        faults = rank["faults"]
        assert faults["failed"] and faults["stalled"] and faults["went on"]
        assert "device lost" in faults["lost"]


RECORDED = Path(__file__).parent / "accelerator" / "recorded.py"
PROGRAMS = "behind,waits,holds,failure,training,pairs,batches,forks,capture,many,budget,gone"


@pytest.fixture(scope="module")
def seen(ranks: Forked, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the recorder wrote of the device, by program."""
    for made in (accelerator.build(), native.build()):
        if made.library is None:
            pytest.skip(f"nothing to record with or on: {made.detail or made.outcome.value}")
    directory = tmp_path_factory.mktemp("recorded")
    started = ranks.start(RECORDED, [[PROGRAMS, str(directory)]] * 2, directory)
    return [json.loads(printed.splitlines()[-1]) for printed in started.printed()]


def test_a_collective_ends_when_its_device_has_done_it(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        behind = rank["behind"]
        assert behind["sources"] == [Source.DEVICE_EVENT]
        assert behind["standing"] == [[0, 0, True]] * 6, "not arrived, not finished, and known to be so"
        assert behind["in order"]
        assert behind["oldest"] == 0


def test_the_device_that_comes_late_does_not_wait(seen: list[dict[str, Any]]) -> None:
    """However its end is awaited: at once, later, or through its future as DDP does."""
    for name in ("sync", "async", "future"):
        early, late = (rank["waits"][name] for rank in seen)
        assert early > 0.8 and late < early / 3, name


def test_nothing_is_held_longer_than_its_user_holds_it(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        holds = rank["holds"]
        assert holds["alive"] == holds["dead"] == [True] * 5
        assert holds["standing"] == [0] * 6, (
            "one that was dropped and never awaited says nothing of the others"
        )
        assert holds["sources"] == [Source.DEVICE_EVENT] * 5


def test_a_work_that_failed_is_recorded_as_failed(seen: list[dict[str, Any]]) -> None:
    assert [rank["failure"]["flags"] for rank in seen] == [[FLAG_FAILED], [FLAG_FAILED]]


def test_steps_and_waits_of_training_are_the_devices(seen: list[dict[str, Any]]) -> None:
    early, late = (rank["training"] for rank in seen)
    for rank in (early, late):
        assert rank["source"] == [Source.DEVICE_EVENT]
        assert sorted(rank["steps"][1:-1])[4] > 0.9, "a step takes as long as the slow device needs"
    assert early["waits"] > 0.8 and late["waits"] < early["waits"] / 3


def test_sends_and_receives_end(seen: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(seen):
        assert rank["pairs"] == {"ops": ["send", "recv_"], "peers": [1 - number] * 2, "value": 4.0}


def test_operations_of_a_batch_end_with_it(seen: list[dict[str, Any]]) -> None:
    """As `batch_isend_irecv` and coalesced collectives on NCCL: no operation has a work of its own."""
    for rank in seen:
        found = rank["batches"]
        assert found["trips"] == 0
        assert sorted(found["pairs"]["ops"]) == ["recv_", "send"]
        assert found["sync"]["ops"] == found["async"]["ops"] == ["broadcast_"] * 2
        for name in ("pairs", "sync", "async"):
            batch = found[name]
            assert batch["sources"] == [Source.DEVICE_EVENT], name
            assert batch["standing"] == [[0, 0, True]] * 2, name
            assert batch["in order"], name


def test_a_forked_child_has_no_such_thread(seen: list[dict[str, Any]]) -> None:
    assert [rank["forks"] for rank in seen] == [{"parent": 1, "child": 0}] * 2


def test_a_stream_capture_is_left_alone(seen: list[dict[str, Any]]) -> None:
    assert [rank["capture"] for rank in seen] == [{"invalidated": 0, "recorded": 0, "sources": [0]}] * 2


def test_two_thousand_collectives_are_accounted_for(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        many = rank["many"]
        assert 2000 <= many["events"] <= 4000
        assert many["backwards"] == many["trips"] == 0
        assert many["looking"] < 0.01, "0.08 % of a core, but caches are cold on a busy machine"


def test_fewer_steps_are_timed_while_events_take_too_much_of_the_time(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        found = rank["budget"]
        assert found["before"] >= 1 and found["sampled"] >= 4, found
        assert found["after"] == 1, "and all of them again once they take little"
        assert found["sources"] == [Source.DEVICE_EVENT], "ends are always recorded"
        if found["stayed"]:  # else the rate changed while it was looked at
            assert all(is_timed <= expected for expected, is_timed in found["timed"]), found


def test_a_device_that_is_lost_is_told_in_its_own_words(seen: list[dict[str, Any]]) -> None:
    assert all("fell off the bus" in rank["gone"]["error"] for rank in seen)
