"""What a checkpoint tells about itself: always one whole text, without credentials."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from torchloom.checkpoint import reporting
from torchloom.checkpoint.report_text import MOST_CHARS, MOST_PLACES, MOST_REJECTED, Told, without_credentials
from torchloom.wire.blackbox import CHECKPOINTS


@pytest.fixture
def heard() -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    before = reporting.ports.checkpoints

    def hear(told: Mapping[str, object]) -> None:
        found.append(json.loads(json.dumps(told)))

    reporting.ports.checkpoints = hear
    yield found
    reporting.ports.checkpoints = before


def test_each_change_is_told_with_all_that_is_known(heard: list[dict[str, Any]]) -> None:
    told = Told("/data", "j")
    told.opened("step-4.g1", "the store", {"step-6.g1": "a file was changed"})
    told.paces(20, 1)
    told.saved("step-20.g2", 20, 1.5, 100, 0.25)
    told.failed(40, "the disk is full")
    assert len(heard) == 3
    last = heard[-1]
    assert (last["uri"], last["name"], last["restored"]) == ("/data", "j", "step-4.g1")
    assert last["rejected"] == [["step-6.g1", "a file was changed"]]
    assert last["saved"]["step"] == 20 and last["saved"]["at_ns"] == 1_500_000_000
    assert last["interval"] == 20 and last["failing"] == {"step": 40, "why": "the disk is full"}


def test_a_part_that_was_written_ends_the_failing_of_its_rank(heard: list[dict[str, Any]]) -> None:
    told = Told("/data", "j")
    told.wrote()
    assert heard == [], "no news"
    told.failed(1, "no")
    told.wrote()
    assert heard[-1]["failing"] is None and heard[-1]["failures"] == 1


def test_the_longest_text_fits_into_the_black_box(heard: list[dict[str, Any]]) -> None:
    told = Told("s3://bucket/" + "p" * 1000, "j" * 128)
    told.opened("step-1.g1", "the store", {f"step-{n}.g1": "x" * 10_000 for n in range(100)})
    told.saved("step-2.g1", 2, 1.0, 1, 1.0)
    told.failed(3, "ü" * 10_000)
    told.differs("step-1.g1", ["ü" * 10_000] * 100)
    assert len(heard[-1]["differs"]["places"]) == MOST_PLACES and heard[-1]["differs"]["more"] == 95
    assert len(heard[-1]["rejected"]) == MOST_REJECTED
    assert len(heard[-1]["failing"]["why"]) == MOST_CHARS
    assert len(json.dumps(heard[-1]).encode()) < CHECKPOINTS.capacity


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("/data/a@b?c", "/data/a@b?c"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("s3://key:secret@bucket/a@b?X-Amz-Signature=s", "s3://bucket/a@b"),
    ],
)
def test_an_address_is_told_without_credentials(uri: str, told: str) -> None:
    assert without_credentials(uri) == told
