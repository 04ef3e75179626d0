"""When a node of an allocation is given up: only if its agent is silent and Slurm has it DOWN."""

from __future__ import annotations

import pytest

from torchloom.cli.places.slurm_watch import is_down, lost_nodes


@pytest.mark.parametrize(
    ("state", "down"),
    [
        ("DOWN", True),
        ("DOWN*", True),
        ("DOWN*+DRAIN", True),
        ("DOWN+CLOUD+POWERED_DOWN", True),
        ("MIXED", False),
        ("ALLOCATED*", False),
        ("IDLE+NOT_RESPONDING", False),
        ("IDLE+POWERED_DOWN", False),
        ("IDLE+POWERING_DOWN", False),
        ("DRAINED", False),
        ("", False),
    ],
)
def test_what_slurm_means_by_a_state(state: str, down: bool) -> None:
    assert is_down(state) is down


def test_one_witness_is_not_enough() -> None:
    nodes = [{"id": name, "state": state} for name, state in (("a", "unreachable"), ("b", "ready"))]
    assert lost_nodes(nodes, {"a": "DOWN*", "b": "DOWN*"}) == ["a"]
    assert lost_nodes(nodes, {"a": "ALLOCATED*", "b": "IDLE"}) == []
    assert lost_nodes(nodes, {}) == []
