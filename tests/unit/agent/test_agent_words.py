"""Black-box contents as sentences."""

from __future__ import annotations

import pytest

from torchloom.agent.observe import words
from torchloom.wire.blackbox import OPS, CollectiveRecord, Group, Source, WorkerPhase

S = 10**9
GROUPS = {
    5: Group(key=5, name="0", size=4, entered=412, finished=411, rank=0),
    6: Group(key=6, name="pipeline", size=2, entered=1, finished=1, rank=0),
}


def record(op: str, group: int = 5, size: int = 4_000_000, peer: int | None = None) -> CollectiveRecord:
    return CollectiveRecord(1, OPS.index(op), group, 412, size, 7, Source.CALLBACK, 0, 4, peer, 8 * S, 0)


def said(
    phase: WorkerPhase,
    steps: int = 0,
    under_way: CollectiveRecord | None = None,
    user: str = "",
    offset: int = 0,
) -> str:
    return words.activity(
        now_ns=10 * S,
        phase=phase,
        phase_since_ns=9 * S,
        user_phase=user,
        steps=steps,
        step_ended_ns=8 * S if steps else 0,
        under_way=under_way,
        groups=GROUPS,
        offset=offset,
    )


def test_every_operation_of_torch_has_a_name_of_its_own() -> None:
    names = [words.op_name(op) for op in range(len(OPS))]
    assert len(set(names)) == len(OPS)
    assert not any(name.endswith("_") or name.startswith("_") for name in names)
    assert words.op_name(999) == "unknown"


def test_a_collective_in_words() -> None:
    assert (
        words.collective(record("allreduce_"), GROUPS) == "all_reduce #412 of group default (4.0 MB float32)"
    )
    assert words.collective(record("send", 6, 512, 3), GROUPS) == (
        "send #412 of group pipeline with rank 3 (512 B float32)"
    )
    assert words.collective(record("barrier", 99, 0), GROUPS) == "barrier #412"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (said(WorkerPhase.TRAINING, 7, record("allreduce_")),
         "in all_reduce #412 of group default (4.0 MB float32) for 2.0 s"),
        (said(WorkerPhase.DATA_WAIT, 7), "waiting for data for 1.0 s"),
        (said(WorkerPhase.TRAINING, 7), "training, 2.0 s after its step 7"),
        (said(WorkerPhase.TRAINING, 70, offset=-20), "training, 2.0 s after its step 50"),
        (said(WorkerPhase.STARTING), "starting, with no step completed"),
        (said(WorkerPhase.USER, 7, user="eval"), "in its phase eval for 1.0 s"),
        (said(WorkerPhase.COMPILING), "compiling for 1.0 s"),
        (said(WorkerPhase.NONE, 3), "past its step 3"),
    ],
)  # fmt: skip
def test_activity(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0042, "4 ms"), (0.2, "0.2 s"), (99.9, "99.9 s"), (1234.5, "1234 s"), (-1, "0 ms")],
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (4_000_000, "4.0 MB"), (7 * 10**9, "7.0 GB")],
)
def test_sizes(count: int, text: str) -> None:
    assert words.size(count) == text


def test_unknown_numbers_are_no_reason_to_fail() -> None:
    assert words.phase_name(77) == "unknown"
    assert words.phase_name(WorkerPhase.USER, "warm-up") == "warm-up"
    assert words.recorder_name(77) == "unknown"
