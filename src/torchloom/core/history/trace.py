"""Ranks as tracks in the trace-event format that Perfetto opens: steps, data waits, collectives, incidents.

Clocks of hosts differ. A collective that makes everybody wait ends on all its ranks at about the same moment,
so the median difference of those ends between two hosts is the difference of their clocks; every host is
shifted by it onto the first one. Arrows lead from the rank that came last to those that waited for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from msgspec import Struct

Event = dict[str, Any]
TOGETHER = ("all_reduce", "barrier", "all_gather", "reduce_scatter", "all_to_all")
"""Begins of the names of operations that no rank can leave before the last one has come."""
MOST_ARROWS = 20_000


class RankRecord(Struct, frozen=True):
    """What a rank's black box held. Times are wall-clock nanoseconds of that rank's host."""

    rank: int
    node: str
    steps: Sequence[Mapping[str, Any]]
    collectives: Sequence[Mapping[str, Any]]


def offsets_ns(ranks: Sequence[RankRecord]) -> dict[str, int]:
    """By node, what must be taken from its times to have them by the clock of the first node."""
    ends: dict[tuple[object, ...], dict[str, int]] = defaultdict(dict)
    for rank in ranks:
        for one in rank.collectives:
            if one["finished_ns"] and one["group_seq"] and str(one["op"]).startswith(TOGETHER):
                by_node = ends[_key(one)]
                by_node[rank.node] = max(by_node.get(rank.node, 0), int(one["finished_ns"]))
    nodes = list(dict.fromkeys(rank.node for rank in ranks))
    found = dict.fromkeys(nodes[:1], 0)
    for node in nodes[1:]:
        # By way of any node that is known already: not every pair of hosts shares a group.
        gaps = [
            by_node[node] - by_node[other] + found[other]
            for by_node in ends.values()
            for other in found
            if node in by_node and other in by_node
        ]
        found[node] = int(median(gaps)) if gaps else 0
    return found


def events(
    job: str, ranks: Sequence[RankRecord], incidents: Sequence[Mapping[str, Any]] = (), last_s: float = 0.0
) -> list[Event]:
    """All events by time, of the last `last_s` seconds if that is not 0."""
    shift = offsets_ns(ranks)
    made: list[Event] = []
    for rank in ranks:
        made += _names(rank, list(shift))
        made += _steps(rank, list(shift), shift[rank.node])
        made += _collectives(rank, list(shift), shift[rank.node])
    made += _arrows(ranks, list(shift), shift)
    newest = max((e["ts"] + e.get("dur", 0) for e in made if e["ph"] == "X"), default=0.0)
    oldest = newest - last_s * 1e6 if last_s else 0.0
    made = [e for e in made if e["ph"] == "M" or e["ts"] + e.get("dur", 0) >= oldest]
    for one in incidents:
        at = one["timeline"]["fault_ns"] or one["timeline"]["detected_ns"]
        if at / 1e3 >= oldest:
            says = {"name": f"{one['kind']}: {one['verdict']}", "cat": "incident", "args": {"id": one["id"]}}
            made.append({**says, "ph": "i", "s": "g", "ts": at / 1e3, "pid": 1, "tid": 0})
    return sorted(made, key=lambda e: (e["ph"] != "M", e.get("ts", 0.0)))


def _key(one: Mapping[str, Any]) -> tuple[object, ...]:
    return (one["group"], one["group_seq"], one["op"])


def _track(rank: RankRecord, nodes: list[str], collectives: bool = False) -> Event:
    return {"pid": nodes.index(rank.node) + 1, "tid": 2 * rank.rank + 1 + collectives}


def _names(rank: RankRecord, nodes: list[str]) -> list[Event]:
    track = _track(rank, nodes)
    both = ((track, f"rank {rank.rank}"), (_track(rank, nodes, True), f"rank {rank.rank} collectives"))
    return [
        {"ph": "M", "name": "process_name", "pid": track["pid"], "args": {"name": f"node {rank.node}"}},
        *(_named("thread_name", at, {"name": says}) for at, says in both),
        *(_named("thread_sort_index", at, {"sort_index": at["tid"]}) for at, _ in both),
    ]


def _named(what: str, track: Event, args: Event) -> Event:
    return {"ph": "M", "name": what, **track, "args": args}


def _steps(rank: RankRecord, nodes: list[str], shift_ns: int) -> list[Event]:
    made = []
    for one in rank.steps:
        begins_ns = one["ended_ns"] - one["step_ns"] - shift_ns
        at = {"ph": "X", "ts": begins_ns / 1e3, **_track(rank, nodes)}
        made.append({**at, "name": f"step {one['step']}", "cat": "step", "dur": one["step_ns"] / 1e3})
        if one["data_wait_ns"]:
            # How long is known, not where in the step: most loops fetch their batch first.
            made.append({**at, "name": "data wait", "cat": "data", "dur": one["data_wait_ns"] / 1e3})
    return made


def _collectives(rank: RankRecord, nodes: list[str], shift_ns: int) -> list[Event]:
    made, last_ns = [], 0
    for one in sorted(rank.collectives, key=lambda one: int(one["entered_ns"])):
        entered_ns, finished_ns = int(one["entered_ns"]), one["finished_ns"]
        says = {
            "name": f"{one['op']} #{one['group_seq'] or one['seq']}",
            "cat": "collective",
            "args": {"group": one["group"], "bytes": one["bytes"], "dtype": one["dtype"]},
        }
        at = {"ts": (entered_ns - shift_ns) / 1e3, **_track(rank, nodes, True)}
        if finished_ns is None:
            made.append({**says, **at, "ph": "B"})  # it was in progress
        elif entered_ns < last_ns:
            # Slices of one track may not cross each other; what overlaps is shown beside it.
            id = f"{rank.rank}.{one['seq']}"
            made.append({**says, **at, "ph": "b", "id": id})
            made.append({**says, **at, "ph": "e", "id": id, "ts": (finished_ns - shift_ns) / 1e3})
        else:
            made.append({**says, **at, "ph": "X", "dur": (finished_ns - entered_ns) / 1e3})
            last_ns = int(finished_ns)
    return made


def _arrows(ranks: Sequence[RankRecord], nodes: list[str], shift: Mapping[str, int]) -> list[Event]:
    """From the last rank to arrive to all that waited for it."""
    by_key: dict[tuple[object, ...], list[tuple[int, int, RankRecord]]] = defaultdict(list)
    for rank in ranks:
        for one in rank.collectives:
            if one["group_seq"] and one["finished_ns"]:
                times = (one["entered_ns"] - shift[rank.node], one["finished_ns"] - shift[rank.node])
                by_key[_key(one)].append((*times, rank))
    made: list[Event] = []
    for key, there in by_key.items():
        if len(there) < 2 or len(made) > 2 * MOST_ARROWS:
            continue
        entered_ns, _, last = max(there, key=lambda one: one[0])
        for _, finished_ns, rank in there:
            if rank is not last:
                flow = {"cat": "collective", "name": "last to come", "id": f"{key}.{rank.rank}"}
                made.append({**flow, "ph": "s", "ts": entered_ns / 1e3, **_track(last, nodes, True)})
                ends = {"ts": max(entered_ns, finished_ns - 1) / 1e3, **_track(rank, nodes, True)}
                made.append({**flow, "ph": "f", "bp": "e", **ends})
    return made
