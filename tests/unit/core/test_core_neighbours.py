"""Which node keeps copies of another node's states in memory."""

from __future__ import annotations

import pytest

from torchloom.core.placement.neighbours import ring


def test_a_job_of_one_node_has_no_neighbour() -> None:
    assert ring([]) == {} == ring([("a", "rack-1")])


@pytest.mark.parametrize("count", [2, 3, 7, 100])
def test_every_node_sends_to_one_other_and_keeps_for_one_other(count: int) -> None:
    chosen = ring([(f"n{i}", f"host-{i}") for i in range(count)])
    assert set(chosen) == set(chosen.values()) == {f"n{i}" for i in range(count)}
    assert all(node != neighbour for node, neighbour in chosen.items())


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (2, 1, 1), (3, 2, 1), (4, 4, 4), (5, 3, 2)])
def test_no_copy_is_in_the_failure_domain_of_its_original_if_none_has_more_than_half(
    sizes: tuple[int, ...],
) -> None:
    domain = {f"{rack}-{i}": f"rack-{rack}" for rack, size in enumerate(sizes) for i in range(size)}
    nodes = sorted(domain.items(), key=lambda one: one[0][::-1])  # racks mixed, as ranks may be placed
    chosen = ring(nodes)
    assert set(chosen.values()) == set(domain)
    assert all(domain[node] != domain[neighbour] for node, neighbour in chosen.items())


def test_agents_on_one_host_are_neighbours_rather_than_alone() -> None:
    assert ring([("a", "h"), ("b", "h"), ("c", "h")]) == {"a": "b", "b": "c", "c": "a"}
