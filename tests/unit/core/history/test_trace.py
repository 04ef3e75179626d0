"""The trace of a job: clocks are aligned by collectives, and the file is what Perfetto expects."""

from __future__ import annotations

from typing import Any

from torchloom.core.history.trace import RankRecord, events, offsets_ns

MS = 1_000_000
HOUR = 3600 * 10**9


def collective(seq: int, entered_ms: float, finished_ms: float | None, clock_ns: int = 0) -> dict[str, Any]:
    return {
        "seq": seq,
        "op": "all_reduce",
        "group": "default",
        "group_seq": seq,
        "bytes": 8,
        "dtype": "float32",
        "entered_ns": int(entered_ms * MS) + clock_ns,
        "finished_ns": None if finished_ms is None else int(finished_ms * MS) + clock_ns,
    }


def job(clock_ns: int) -> list[RankRecord]:
    """Two hosts; the second one's clock is ahead. Rank 1 comes late to every collective."""
    step = {"step_ns": 90 * MS, "data_wait_ns": 10 * MS, "collectives": 1}
    ranks = []
    for rank, node in enumerate(("a", "b")):
        clock = clock_ns if node == "b" else 0
        steps = [{**step, "step": n, "ended_ns": n * 100 * MS + clock} for n in range(1, 6)]
        made = [collective(n, n * 100 - (20 if rank == 0 else 2), n * 100 - 1, clock) for n in range(1, 6)]
        ranks.append(RankRecord(rank, node, steps, made))
    return ranks


def test_a_clock_that_is_hours_wrong_is_found_by_the_collectives() -> None:
    assert offsets_ns(job(3 * HOUR)) == {"a": 0, "b": 3 * HOUR}
    wrong, right = events("j", job(3 * HOUR)), events("j", job(0))
    assert wrong == right, "the same job on hosts whose clocks agree gives the same trace"


def test_hosts_that_share_no_group_are_aligned_by_way_of_a_third() -> None:
    def rank(number: int, node: str, group: str, clock_ns: int) -> RankRecord:
        return RankRecord(number, node, [], [{**collective(1, 1, 5, clock_ns), "group": group}])

    pair = [rank(0, "a", "x", 0), rank(1, "b", "x", HOUR)]
    both = [*pair, rank(2, "b", "y", HOUR), rank(3, "c", "y", 5 * HOUR)]
    assert offsets_ns(both) == {"a": 0, "b": HOUR, "c": 5 * HOUR}


def test_slices_nest_and_arrows_lead_from_the_last_to_come() -> None:
    made = events("j", job(0))
    for e in made:
        assert {"ph", "pid"} <= set(e) and (e["ph"] == "M" or e["ts"] >= 0)
    begins = {e["id"]: e for e in made if e["ph"] == "s"}
    ends = {e["id"]: e for e in made if e["ph"] == "f"}
    assert len(begins) == len(ends) == 5 and set(begins) == set(ends)
    late = next(e for e in made if e.get("args") == {"name": "rank 1 collectives"})
    assert {e["tid"] for e in begins.values()} == {late["tid"]}
    for arrow in ends.values():
        inside = [e for e in made if e["ph"] == "X" and (e["pid"], e["tid"]) == (arrow["pid"], arrow["tid"])]
        assert any(e["ts"] <= arrow["ts"] <= e["ts"] + e["dur"] for e in inside), "it ends at a slice"


def test_what_overlaps_and_what_is_under_way_is_shown_too() -> None:
    crossing = [collective(1, 0, 10), collective(2, 5, 15), collective(3, 20, None)]
    phases = [e["ph"] for e in events("j", [RankRecord(0, "a", [], crossing)]) if e["ph"] != "M"]
    assert sorted(phases) == ["B", "X", "b", "e"]


def test_only_the_newest_part_is_kept_and_incidents_are_on_it() -> None:
    line = {"fault_ns": 480 * MS, "detected_ns": 490 * MS}
    incident = {"id": "j.1", "kind": "crash", "verdict": "rank 1 died", "timeline": line}
    made = events("j", job(0), [incident], last_s=0.15)
    steps = [e["name"] for e in made if e.get("cat") == "step"]
    assert set(steps) == {"step 4", "step 5"}
    assert [e["name"] for e in made if e["ph"] == "i"] == ["crash: rank 1 died"]
