"""What dumps say: synthesized fixtures in NCCL's format (tests/data/flight/README.md), and bad content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.core.flight.analysis import Analysis, analyze
from torchloom.core.flight.dump import read_dump, trimmed
from torchloom.errors import DumpUnreadable
from torchloom.model.flight import Dump

DATA = Path(__file__).parents[3] / "data" / "flight"
SECOND = 10**9


def dumps(case: str) -> list[Dump]:
    found = []
    for file in sorted((DATA / case).iterdir()):
        found.append(read_dump(json.loads(file.read_text()), int(file.stem[-1])))
    return found


def newest_ns(read: list[Dump]) -> int:
    return max(e.created_ns for d in read for e in d.entries)


def judged(case: str, after_s: float = 20.0) -> Analysis:
    read = dumps(case)
    written = newest_ns(read) + int(after_s * SECOND)
    return analyze(read, {d.rank: written for d in read})


@pytest.mark.parametrize(
    ("case", "kind", "ranks", "waiting"),
    [
        ("nccl-missing-rank", "missing-rank", (2,), (0, 1, 3)),
        ("nccl-device-behind", "device-behind", (3,), (0, 1, 2)),
        ("nccl-communication", "communication-hang", (), (0, 1, 2, 3)),
        ("nccl-untimed", "communication-hang", (), (0, 1, 2, 3)),
        ("nccl-size", "desync", (1,), (0, 1, 2, 3)),
        ("nccl-order", "ordering-deadlock", (0, 1), (0, 1)),
        ("nccl-pipeline", "missing-rank", (1,), (0, 2, 3)),
        ("nccl-coalesced", "no-fault", (), ()),
        ("nccl-coalesced-gather", "missing-rank", (1,), (0,)),
        ("nccl-no-dump", "missing-dump", (1,), (0, 2, 3)),
    ],
)
def test_each_fault_is_named_with_its_ranks(
    case: str, kind: str, ranks: tuple[int, ...], waiting: tuple[int, ...]
) -> None:
    found = judged(case)
    assert (found.kind, found.ranks, found.waiting) == (kind, ranks, waiting), found.verdict
    # What an agent sends is less, and says the same.
    read = dumps(case)
    written = {d.rank: newest_ns(read) + 20 * SECOND for d in read}
    assert analyze([trimmed(d, newest=1) for d in read], written).verdict == found.verdict


def test_a_verdict_says_who_where_and_what_it_did_last() -> None:
    assert judged("nccl-missing-rank").verdict == (
        "rank 2 has not entered all_reduce #412 of group 0 (default_pg) for 20.0 s; ranks 0, 1 and 3 wait; "
        "its last operation was all_reduce #411 of group 0 (default_pg), in evaluate() at eval.py:31"
    )
    assert "rank 1 has not sent to rank 2 (recv #2" in judged("nccl-pipeline").verdict
    assert "65520 bytes" in judged("nccl-size").verdict


def test_a_rank_that_nobody_asked_is_missed() -> None:
    read = dumps("nccl-coalesced")
    assert analyze(read, asked=range(3)).missing == (2,)


def test_of_a_large_job_only_some_ranks_are_asked() -> None:
    read = dumps("nccl-communication")
    some = [d for d in read if d.rank < 2]
    found = analyze(some, {d.rank: newest_ns(read) + 9 * SECOND for d in some}, asked=(0, 1))
    assert (found.kind, found.missing) == ("communication-hang", ())
    assert found.verdict.startswith("ranks 0 and 1 have entered")
    assert "only 2 of 4 ranks were asked" in found.notes


def test_dumps_of_a_job_that_runs_show_no_fault() -> None:
    """The others entered the newest collective a moment before: dumps are not taken at one instant."""
    assert judged("nccl-missing-rank", after_s=0.2).kind == "no-fault"


def test_copied_files_have_no_time() -> None:
    found = judged("nccl-missing-rank", after_s=86400.0)
    assert found.ranks == (2,) and " s;" not in found.verdict
    assert any("copies" in note for note in found.notes)
    assert {line.since_s for line in found.table} == {None}


def test_a_member_of_a_group_that_never_used_it_is_missed() -> None:
    """Ranks 0 and 1 are in group `tp`, a third rank is not, and only rank 0 has come."""

    def rank(number: int, *entries: dict[str, Any]) -> Dump:
        config = {"5": {"name": "5", "desc": "tp", "ranks": "[0, 1]"}}
        return read_dump({"version": "2.10", "pg_config": config, "entries": list(entries)}, number)

    one = {
        "record_id": 0,
        "process_group": ["5", "tp"],
        "collective_seq_id": 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 5 * SECOND,
        "state": "started",
    }
    other = {**one, "process_group": ["6", "dp"], "state": "completed"}
    found = analyze([rank(0, one), rank(1, other), rank(2, other)], dict.fromkeys(range(3), 30 * SECOND))
    assert (found.kind, found.ranks) == ("missing-rank", (1,))


def test_groups_of_one_name_and_other_members_are_kept_apart() -> None:
    def rank(number: int, members: str, seq: int) -> Dump:
        entry = {
            "process_group": ["1", "undefined"],
            "collective_seq_id": seq,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": SECOND,
            "state": "completed" if seq == 1 else "started",
        }
        config = {"1": {"name": "1", "desc": "undefined", "ranks": members}}
        return read_dump({"version": "2.10", "pg_config": config, "entries": [entry]}, number)

    read = [rank(0, "[0, 1]", 9), rank(1, "[0, 1]", 9), rank(2, "[2, 3]", 1), rank(3, "[2, 3]", 1)]
    found = analyze(read, dict.fromkeys(range(4), 9 * SECOND))
    assert (found.kind, found.waiting) == ("communication-hang", (0, 1))


@pytest.mark.parametrize("plain", [None, [], {}, "x", {"entries": []}, {"version": "2.10", "entries": {}}])
def test_what_is_no_dump_is_refused(plain: object) -> None:
    with pytest.raises(DumpUnreadable):
        read_dump(plain, 0)


FIELDS = tuple(json.loads((DATA / "nccl-size" / "nccl_trace_rank_0.json").read_text())["entries"][0])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(
    entries=st.lists(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=8) | ANYTHING, max_size=4),
    config=ANYTHING,
    name=st.sampled_from(("nccl:send 0->1", "nccl:recv 1<-0", "nccl:send 9->x", ":", "gloo:all_reduce")),
)
def test_any_content_is_judged_without_an_error(entries: list[Any], config: object, name: str) -> None:
    for one in entries:
        if isinstance(one, dict):
            one.setdefault("profiling_name", name)
    plain = {"version": "2.10", "pg_config": config, "entries": entries}
    found = analyze([read_dump(plain, rank) for rank in range(3)])
    assert found.verdict
