"""A replica's waits for quorums, and one that is left out for longer than torchft's own timeout."""

from __future__ import annotations

import threading

import pytest

from torchloom.integrations.replica_waits import HeldBack, QuorumWaits


def test_steps_count_within_one_quorum_and_the_first_does_not() -> None:
    waits = QuorumWaits()
    waits.wait(lambda: None)
    assert waits.committed(1, True) == {"torchft/quorum_steps": 0, "torchft/quorum_wait_s": 0.0}
    waits.wait(lambda: None)
    told = waits.committed(1, True)
    assert told["torchft/quorum_steps"] == 1 and told["torchft/quorum_wait_s"] > 0
    assert waits.committed(1, False)["torchft/quorum_steps"] == 0, "a failed step begins anew"
    assert waits.committed(1, True)["torchft/quorum_steps"] == 1
    assert waits.committed(2, True)["torchft/quorum_steps"] == 0


def test_a_round_of_many_steps_has_no_wait_for_a_quorum_in_each() -> None:
    waits = QuorumWaits()
    for _ in range(3):
        waits.wait(lambda: None)
        told = waits.committed(1, True, rounds=True)
    assert told == {"torchft/quorum_steps": 2, "torchft/quorum_wait_s": 0.0}


def test_a_request_that_timed_out_while_it_was_left_out_is_sent_again() -> None:
    held, asked, asks = HeldBack(), threading.Event(), []

    def quorum() -> str:
        asks.append(1)
        if len(asks) == 1:
            held.set(True)  # the lighthouse leaves it out while it waits
            raise TimeoutError("no quorum in time")
        return "quorum"

    answers: list[str] = []
    thread = threading.Thread(target=lambda: (answers.append(held.ask(quorum)), asked.set()))
    thread.start()
    assert not asked.wait(0.05) and len(asks) == 1, "it waits"
    held.set(False)
    thread.join(60)
    assert answers == ["quorum"] and len(asks) == 2


def test_one_that_was_freed_during_its_request_asks_again_and_any_other_error_is_torchfts() -> None:
    held, asks = HeldBack(), []

    def freed() -> str:
        asks.append(1)
        if len(asks) == 1:
            held.set(True)
            held.set(False)
            raise TimeoutError("no quorum in time")
        return "quorum"

    assert held.ask(freed) == "quorum"

    def fails() -> None:
        raise TimeoutError("no quorum in time")

    with pytest.raises(TimeoutError):
        held.ask(fails)
