"""All ranks' dumps to one verdict: who holds the job up, where, and what does not match.

Uses the detectors' own graph and comparison; only the sentences are made here, because a dump knows neither
processes nor steps. Dumps of one job are not taken at one moment: what was entered less than a second before
its dump was written is not called a hang.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from torchloom.core.detect import devices, graph, words
from torchloom.core.detect.desync import desync
from torchloom.core.detect.graph import CollectiveWait, Graph
from torchloom.core.detect.thresholds import Pace, StuckLimits
from torchloom.core.detect.window import PAIRWISE, Collective, RankWindow
from torchloom.core.flight.windows import Groups, window_of
from torchloom.model.flight import Dump

Kind = Literal[
    "no-fault",
    "missing-rank",
    "missing-dump",
    "desync",
    "device-behind",
    "communication-hang",
    "ordering-deadlock",
]
AT_ONCE = StuckLimits(hang_floor_s=0.0, hang_cap_s=0.0)
MOMENT_S = 1.0
"""Dumps of a healthy job differ by less than this: an operation that is younger is not called stuck."""


_USUAL_TIMEOUT_S = 1800.0


class RankLine(Struct, frozen=True, kw_only=True):
    """One rank in the table."""

    rank: int
    entries: int
    group: str = ""
    """Of the operation in progress, else of the newest one."""
    done: int = 0
    """The newest collective of that group that is over."""
    waits_in: str = ""
    """The oldest operation that is not over, with its group."""
    state: str = ""
    since_s: float | None = None
    place: str = ""
    """Where the newest operation was called, if the dump has stacks."""


class Analysis(Struct, frozen=True, kw_only=True):
    kind: Kind
    verdict: str
    ranks: tuple[int, ...] = ()
    """To blame; empty when the dumps name none."""
    waiting: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    """Ranks of which there is no dump."""
    mismatches: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What limits the verdict."""
    table: tuple[RankLine, ...] = ()


def analyze(
    dumps: Sequence[Dump], seen_ns: Mapping[int, int] | None = None, asked: Collection[int] | None = None
) -> Analysis:
    """`seen_ns` says when each rank's dump was written; `asked` names the ranks that were asked for one, if
    that were not all members of all groups."""
    groups = Groups(dumps)
    written = seen_ns or {}
    timed = all(_is_plausible(d, written.get(d.rank, 0)) for d in dumps)
    # Where that is not known, the newest record of all says which wait began first.
    latest_ns = max(map(_newest_ns, dumps), default=0)
    windows = [window_of(d, groups, written[d.rank] if timed else latest_ns) for d in dumps]
    windows.sort(key=lambda w: w.rank)
    by_rank = {d.rank: d for d in dumps}
    missing = tuple(sorted((groups.ranks if asked is None else set(asked)) - by_rank.keys()))
    found = _judge(windows, missing, timed)
    part = asked is not None and bool(groups.ranks - set(asked))
    some = (f"only {len(asked or ())} of {len(groups.ranks)} ranks were asked",) if part else ()
    return Analysis(
        kind=found.kind,
        verdict=found.verdict,
        ranks=found.ranks,
        waiting=found.waiting,
        missing=missing,
        mismatches=found.mismatches,
        notes=(*some, *found.notes, *_notes(dumps, missing, timed or not found.waiting)),
        table=tuple(_line(w, by_rank[w.rank], timed) for w in windows),
    )


def _newest_ns(dump: Dump) -> int:
    return max((max(e.created_ns, e.started_ns, e.completed_ns) for e in dump.entries), default=0)


def _is_plausible(dump: Dump, written_ns: int) -> bool:
    """Whether a file's time can be when it was written: a copy has the time of the copy."""
    timeout_s = max((e.timeout_s for e in dump.entries), default=0.0) or _USUAL_TIMEOUT_S
    return bool(written_ns) and 0 <= written_ns - _newest_ns(dump) <= 2e9 * timeout_s


def _judge(windows: Sequence[RankWindow], missing: tuple[int, ...], timed: bool) -> Analysis:
    if differs := desync(windows, Pace(), AT_ONCE):
        one = differs[0]
        said = tuple(f"rank {e.rank}: {e.says}" for e in one.evidence)
        return Analysis(
            kind="desync", verdict=one.sentence, ranks=one.ranks, waiting=one.waiting, mismatches=said
        )
    found = graph.build(windows, whole=False)
    if not found.at:
        return _nobody_waits(windows, missing)
    longest_s = max(wait.longest_s for wait in found.waits.values())
    if timed and longest_s < MOMENT_S:
        where = words.operation(max(found.waits.values(), key=lambda w: w.longest_s).collective)
        return Analysis(
            kind="no-fault",
            verdict=f"no fault seen: the newest operation in progress, {where}, "
            f"was entered {words.lasting(longest_s)} before the dump",
        )
    return _absent(windows, found, timed) or _circle(found) or _inside(windows, found, missing, timed)


def _nobody_waits(windows: Sequence[RankWindow], missing: tuple[int, ...]) -> Analysis:
    if missing:
        verdict = f"no dump of {words.ranks_text(missing)}; the others wait in no operation"
        return Analysis(kind="missing-dump", verdict=verdict, ranks=missing)
    if not any(w.collectives for w in windows):
        return Analysis(kind="no-fault", verdict="no fault seen: the dumps hold no operations")
    return Analysis(kind="no-fault", verdict="no fault seen: every recorded operation is over on every rank")


def _absent(windows: Sequence[RankWindow], found: Graph, timed: bool) -> Analysis | None:
    """Ranks that others wait for and that wait nowhere themselves."""
    by_rank = {w.rank: w for w in windows}
    roots = sorted(rank for rank in found.awaited if rank not in found.at)
    if not roots:
        return None
    main = max((k for r in roots for k in found.awaited[r]), key=lambda k: found.waits[k].longest_s)
    wait = found.waits[main]
    blamed = [r for r in roots if r in wait.absent]
    waiting = graph.held_up_by(found, blamed)
    last = by_rank[blamed[0]].collectives[-1:]
    after = ""
    if len(blamed) == 1 and last:
        place = by_rank[blamed[0]].process.location
        after = f"; its last operation was {words.operation(last[0])}" + (f", in {place}" if place else "")
    elif len(blamed) == 1:
        after = "; it has no operations in its dump"
    verdict = f"{words.ranks_text(blamed)} {_not_there(blamed, wait)}{_lasting(wait, timed)}"
    verdict += f"{words.then_waiting(waiting)}{after}"
    notes = () if wait.proven else ("the ring was full, so older sends and receives are not known",)
    return Analysis(kind="missing-rank", verdict=verdict, ranks=tuple(blamed), waiting=waiting, notes=notes)


def _not_there(blamed: Sequence[int], wait: CollectiveWait) -> str:
    one = wait.collective
    have = "has" if len(blamed) == 1 else "have"
    if one.op in PAIRWISE:
        did = "sent to" if one.op == "recv" else "received from"
        return f"{have} not {did} {words.ranks_text(wait.ranks)} ({words.operation(one)})"
    return f"{have} not entered {words.operation(one)}"


def _circle(found: Graph) -> Analysis | None:
    circles = graph.cycles(found)
    if not circles:
        return None
    ranks = tuple(sorted(circles[0]))
    waits = {found.at[r]: found.waits[found.at[r]] for r in ranks}
    places = " and ".join(sorted({words.operation(w.collective) for w in waits.values()})[:4])
    pairwise = any(w.collective.op in PAIRWISE for w in waits.values())
    why = "a send or a receive is missing" if pairwise else "they use the groups in different orders"
    return Analysis(
        kind="ordering-deadlock",
        verdict=f"{words.ranks_text(ranks)} wait for each other in {places}: {why}",
        ranks=ranks,
        waiting=graph.held_up_by(found, ranks),
    )


def _lasting(wait: CollectiveWait, timed: bool) -> str:
    return f" for {words.lasting(wait.longest_s)}" if timed else ""


def _inside(windows: Sequence[RankWindow], found: Graph, missing: tuple[int, ...], timed: bool) -> Analysis:
    """Everybody of whom there is a dump has entered, and nobody has finished."""
    wait = max(found.waits.values(), key=lambda w: w.longest_s)
    where, lasting = words.operation(wait.collective), _lasting(wait, timed)
    if missing:
        stuck = f"{words.waiting(wait.ranks)} in {where}{lasting}"
        return Analysis(
            kind="missing-dump",
            verdict=f"no dump of {words.ranks_text(missing)}; {stuck}",
            ranks=missing,
            waiting=wait.ranks,
            notes=("a rank without a dump may be dead, or too stuck to write one",),
        )
    inside = [w for w in windows if w.rank in wait.ranks or w.rank in wait.beside]
    behind = devices.behind(wait, inside, ())
    if behind:
        ranks = tuple(w.rank for w in behind)
        others = tuple(r for r in wait.ranks if r not in ranks)
        return Analysis(
            kind="device-behind",
            verdict=f"{words.ranks_text(ranks)} enqueued {where}, but the device has not started it; "
            f"on {words.ranks_text(others)} it has started and not ended{lasting}",
            ranks=ranks,
            waiting=others,
        )
    started = any((at := graph.blocking(w.collectives)) is not None and at.arrived_ns for w in inside)
    notes = (
        ()
        if started
        else (
            "no start times were recorded, so a device that never reached it looks the same; "
            "TORCH_NCCL_ENABLE_TIMING=1 records them",
        )
    )
    everybody = f"{words.ranks_text(wait.ranks)} have entered" if wait.unknown else "all ranks have entered"
    return Analysis(
        kind="communication-hang",
        verdict=f"{everybody} {where} and none has finished it{lasting}",
        waiting=wait.ranks,
        notes=notes if wait.collective.on_device else (),
    )


def _notes(dumps: Sequence[Dump], missing: Sequence[int], timed: bool) -> list[str]:
    notes = []
    if not timed:
        notes.append(
            "when the dumps were written is not known (the files are copies): dumps of a job that runs, "
            "taken one after the other, can look the same"
        )
    if missing:
        notes.append(f"no dump of {words.ranks_text(missing)}")
    if any(e.backend == "gloo" for d in dumps for e in d.entries[-1:]):
        notes.append("gloo does not record sends and receives in the Flight Recorder")
    if not any(e.place for d in dumps for e in d.entries[-1:]):
        notes.append("the dumps have no stacks")
    return notes


def _line(window: RankWindow, dump: Dump, timed: bool) -> RankLine:
    at = graph.blocking(window.collectives)
    shown: Collective | None = at or (window.collectives[-1] if window.collectives else None)
    position = next((g for g in window.groups if shown is not None and g.name == shown.group), None)
    state = ""
    if at is not None:
        state = "waits" if not at.on_device else "scheduled" if at.approaching else "started"
    return RankLine(
        rank=window.rank,
        entries=len(dump.entries),
        group=shown.group if shown is not None else "",
        done=position.finished if position is not None else 0,
        waits_in=f"{at.op} #{at.group_seq}" if at is not None else "",
        state=state,
        since_s=window.age_s(at) if at is not None and timed else None,
        place=window.process.location,
    )
