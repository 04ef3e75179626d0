"""How a catalogue is shown, and what of a command line is refused before anybody is asked."""

from __future__ import annotations

from typing import Any

import pytest

from torchloom.cli.steer import checkpoints
from torchloom.errors import UsageError


def entry(**more: Any) -> Any:
    made = {
        "name": "step-10.g1",
        "step": 10,
        "generation": 1,
        "where": "/data/j/step-10.g1",
        "whole": True,
        "why": "",
        "verified_ns": 0,
        "pinned": False,
        "resumable": True,
        "newest": False,
        "created_ns": 1,
        "size": 4_200_000,
        "world": 2,
        "epoch": 0,
        "config_version": 3,
        "parent": "step-5.g1",
        "finite": True,
        "metrics": {},
        "lineage": {},
    }
    return {**made, **more}


def catalogue(*entries: Any, **more: Any) -> Any:
    made = {
        "job": "j",
        "store": "/data",
        "name": "j",
        "node": "here",
        "restored": "",
        "restored_from": "",
        "restored_generation": 0,
        "interval": 5,
        "memory_interval": 0,
        "failing": "",
        "left_out": 0,
        "checkpoints": list(entries),
    }
    return {**made, **more}


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({}, "whole"),
        ({"newest": True, "pinned": True}, "newest, pinned"),
        ({"newest": True, "finite": False}, "newest, its numbers are not finite"),
        ({"resumable": False}, "on a branch that was left"),
        ({"whole": False, "why": "a file is gone", "pinned": True}, "damaged: a file is gone"),
    ],
)
def test_the_state_of_one(about: dict[str, Any], told: str) -> None:
    assert checkpoints.state(entry(**about)) == told


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (4_200_000, "4.2 MB"), (42e9, "42 GB"), (3e12, "3.0 TB")],
)
def test_sizes_as_people_say_them(count: int, told: str) -> None:
    assert checkpoints.size(int(count)) == told


def test_a_catalogue_is_a_table_with_a_line_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints.show(catalogue(entry(), failing="j.2", restored="step-5.g1", memory_interval=1, left_out=3))
    shown = capsys.readouterr().out
    assert shown.startswith("in /data on here · every 5 steps · in memory every 1 · resumed from step-5.g1")
    assert "loom incident j.2" in shown and "step-10.g1" in shown and "4.2 MB" in shown
    assert "and 3 older ones" in shown


def test_nothing_saved_is_said_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints.show(catalogue(store="", node=""))
    assert "loom.Checkpoint" in capsys.readouterr().out
    checkpoints.show(catalogue())
    assert "no checkpoints" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        {"name": "step-1.g1"},
        {"verify": True, "pin": "step-1.g1"},
        {"pin": "a", "delete": "b"},
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        checkpoints.command("j", **options)


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="as listed"):
        checkpoints._checked("../../etc")
