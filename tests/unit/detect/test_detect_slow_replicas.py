"""Which replica of a torchft job the others wait for: by own times, among all members of one quorum."""

from __future__ import annotations

from typing import Any

import pytest
from detect_windows import window

from torchloom.core.detect.slow_replicas import STEPS, ReplicaPace, others_of, pace_of, slow_replica
from torchloom.core.detect.window import StepTimes
from torchloom.model.windows import QuorumFacts, RankWindow

MS = 1_000_000


def pace(
    own_ms: float, step_ms: float = 150, quorum: int = 4, replicas: int = 3, steps: int = 20
) -> ReplicaPace:
    return ReplicaPace(
        own_s=own_ms / 1000, step_s=step_ms / 1000, steps=steps, quorum=quorum, replicas=replicas
    )


def of(**own_ms: float) -> dict[str, ReplicaPace]:
    return {name: pace(ms, step_ms=max(own_ms.values()), replicas=len(own_ms)) for name, ms in own_ms.items()}


def found(paces: dict[str, ReplicaPace]) -> list[str]:
    """The replicas that are reported."""
    return [job for job in paces if slow_replica(paces, job, [window(0)])]


def rank(own_ms: float, waits_ms: float, quorum_wait_s: float = 0.0, **facts: int) -> RankWindow:
    steps = tuple(
        StepTimes(n, int((own_ms + waits_ms) * MS + quorum_wait_s * 1e9), 0, int(waits_ms * MS))
        for n in range(1, 33)
    )
    told: dict[str, Any] = {"number": 4, "replicas": 3, "steps": 20} | facts
    return window(0, steps=steps, quorum=QuorumFacts(wait_s=quorum_wait_s, **told))


def test_the_replica_that_all_wait_for_is_found_and_the_others_are_not() -> None:
    paces = of(a=50, b=55, c=150)
    assert found(paces) == ["c"]
    (finding,) = slow_replica(paces, "c", [window(0)])
    assert finding.sentence == (
        "c takes 150 ms for its own part of a step, the slowest of the other 2 replicas 55 ms, "
        "and all wait for it"
    )
    assert finding.inputs["replicas"] == 3 and finding.inputs["ratio"] == pytest.approx(150 / 55)


@pytest.mark.parametrize(
    ("paces", "why"),
    [
        (of(a=50, b=55, c=75), "it is hardly slower"),
        (of(a=1, b=1, c=4), "a few milliseconds"),
        (of(a=50, b=140, c=150), "two are slow: without one of them the other is waited for"),
        (of(a=150, b=150, c=150), "all are slow"),
        (of(c=150), "it is alone"),
        ({**of(a=50, b=55, c=150), "b": pace(55, quorum=3)}, "one is in another quorum"),
        ({**of(a=50, b=55, c=150), "b": pace(55, steps=STEPS - 1)}, "one has made too few steps"),
        ({name: p for name, p in of(a=50, b=55, c=150).items() if name != "b"}, "one is not known"),
        ({**of(a=50, b=55, c=150), "b": pace(55, step_ms=60)}, "one does not wait for it"),
    ],
)
def test_nobody_is_blamed_without_evidence(paces: dict[str, ReplicaPace], why: str) -> None:
    assert found(paces) == [], why


def test_an_own_time_has_neither_collectives_nor_the_wait_for_a_quorum_in_it() -> None:
    """A replica may be slow before its collectives, which the others see as a wait in one, or after them,
    which they see as a wait for the quorum."""
    for one in (rank(50, 100), rank(50, 0, quorum_wait_s=0.1), rank(50, 40, quorum_wait_s=0.06)):
        measured = pace_of([one])
        assert measured is not None
        assert measured.own_s == pytest.approx(0.05) and measured.step_s == pytest.approx(0.15)


def test_a_replica_of_several_ranks_is_as_slow_as_its_slowest_rank() -> None:
    measured = pace_of([rank(50, 100), rank(140, 10)])
    assert measured is not None and measured.own_s == pytest.approx(0.14)
    assert pace_of([rank(50, 100), rank(140, 10, number=5)]) is None, "they are in different quorums"
    assert pace_of([rank(50, 100), window(1)]) is None, "one has committed nothing yet"
    assert pace_of([]) is None


def test_the_others_are_those_of_the_newest_quorum() -> None:
    left_out = {**of(a=50, b=55), "c": pace(150, quorum=3)}
    assert others_of(left_out, "c").keys() == {"a", "b"}
    assert others_of({"c": pace(150), "a": pace(50), "b": pace(50)}, "c").keys() == {"a", "b"}
    assert not others_of({"c": pace(150), "a": pace(50)}, "c"), "b is missing"
