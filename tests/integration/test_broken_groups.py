"""Transfers of a real gloo group, which torchft heals replicas with, end when one of its members has died."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from torchloom.integrations.broken_groups import BrokenGroups, WatchedGroup

LIMIT = timedelta(seconds=40)


def pair() -> list[Any]:
    """Both members of a gloo group, in this process."""
    store, made = dist.HashStore(), [None, None]

    def make(rank: int) -> None:
        made[rank] = dist.ProcessGroupGloo(store, rank, 2, LIMIT)

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT.total_seconds())
    return made


def test_a_transfer_without_a_future_is_waited_for_as_ever() -> None:
    """torchft's PGTransport heals a replica with them."""
    first, second = pair()
    group, got = WatchedGroup(1, frozenset({"a", "b"})), torch.zeros(3)
    received = second.recv([got], 0, 7)
    with pytest.raises(RuntimeError, match="getFuture"):
        received.get_future()
    group.wait(first.send([torch.ones(3)], 1, 7), LIMIT)
    group.wait(received, LIMIT)
    assert got.tolist() == [1, 1, 1] and not group.waiting


def test_whoever_waits_for_a_transfer_of_a_dead_member_is_woken() -> None:
    group = WatchedGroup(1, frozenset({"a", "b"}))
    first, second = pair()
    work, found = first.recv([torch.zeros(3)], 1, 7), []

    def wait() -> None:
        try:
            group.wait(work, LIMIT)
        except RuntimeError as error:
            found.append(str(error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while not group.waiting:
        assert thread.is_alive()
    group.end(["b"])
    thread.join(2 * LIMIT.total_seconds())
    assert found == ["b has ended or is stopped: this collective cannot complete"]
    second.send([torch.ones(3)], 0, 7).wait(LIMIT)  # nothing of it is in progress when the test ends


def test_a_group_that_waits_for_a_member_that_died_is_given_up() -> None:
    """Its members look for each other in a store, and gloo waits there for as long as its timeout is."""
    groups, found = BrokenGroups(), []
    store = dist.HashStore()

    def make() -> None:
        groups.quorum(5, ["a", "b"])
        groups.before()
        try:
            groups.aside(lambda: dist.ProcessGroupGloo(store, 0, 2, LIMIT))
        except RuntimeError as error:
            found.append(str(error))

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    while store.num_keys() == 0:  # it has begun
        assert thread.is_alive()
    groups.died(4, ["b"])
    assert thread.is_alive(), "in an earlier quorum"
    groups.died(5, ["b"])
    thread.join(LIMIT.total_seconds() / 2)
    assert found == ["b has ended or is stopped: this collective cannot complete"]
    dist.ProcessGroupGloo(store, 1, 2, LIMIT)  # nobody waits any more when the test ends


def test_a_group_is_made_aside_like_any_other_and_its_errors_are_the_callers() -> None:
    groups = BrokenGroups()
    assert groups.aside(lambda: "without a quorum") == "without a quorum"
    groups.quorum(5, ["a"])
    assert groups.aside(threading.current_thread) is not threading.current_thread()
    with pytest.raises(ValueError, match="invalid literal"):
        groups.aside(lambda: int("one"))
    groups.died(5, ["a"])
    with pytest.raises(RuntimeError, match="a has ended"):
        groups.aside(lambda: "never begun")
