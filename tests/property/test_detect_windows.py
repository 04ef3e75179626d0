"""What holds for every job: no rank is special, no clock matters, nobody who has come is blamed."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from torchloom.core.detect.attribute import stragglers
from torchloom.core.detect.cost import what_if
from torchloom.core.detect.desync import desync
from torchloom.core.detect.hang import hangs
from torchloom.core.detect.slow import SlowLimits
from torchloom.core.detect.thresholds import Pace, StuckLimits
from torchloom.core.detect.window import Collective, GroupPosition, ProcessFacts, RankWindow, StepTimes
from torchloom.model.findings import Finding

SECOND = 10**9
PACE = Pace(steps=100, recent_s=(0.3,) * 50)
CALM = settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
GROUPS = ("world", "even", "odd")


@st.composite
def jobs(draw: st.DrawFn) -> list[RankWindow]:
    """Any state of a job: ranks at any place of three groups that overlap, in or out of collectives."""
    world = draw(st.integers(2, 7))
    windows = []
    for rank in range(world):
        mine = ["world", GROUPS[1 + rank % 2]]
        positions, under_way = [], []
        for name in mine:
            size = world if name == "world" else len(range(rank % 2, world, 2))
            index = rank if name == "world" else rank // 2
            entered = draw(st.integers(3, 5))
            positions.append(GroupPosition(name, size, index, entered, entered))
            if draw(st.booleans()):
                ago = draw(st.sampled_from((0.1, 3.0, 30.0, 700.0)))
                size_of = draw(st.sampled_from((64, 64, 64, 8)))
                at = round((1000 - ago) * SECOND)
                waited = draw(st.booleans())
                under_way.append(
                    Collective("all_reduce", name, entered, size_of, "float32", at, waited=waited)
                )
        under_way.sort(key=lambda c: c.entered_ns)
        idle = draw(st.sampled_from((0.1, 3.0, 700.0)))
        own = draw(st.lists(st.integers(1, 4 * SECOND), min_size=6, max_size=6))
        state = draw(st.sampled_from("RSDT"))
        windows.append(
            RankWindow(
                rank=rank,
                node=f"n{rank // 2}",
                role="one",
                taken_ns=1000 * SECOND,
                started_ns=SECOND,
                last_activity_ns=round((1000 - idle) * SECOND),
                steps_done=100,
                groups=tuple(positions),
                collectives=tuple(under_way),
                steps=tuple(StepTimes(n, 4 * SECOND, 0, 4 * SECOND - t) for n, t in enumerate(own, 1)),
                process=ProcessFacts(state=state),
            )
        )
    return windows


def everything(windows: list[RankWindow]) -> list[Finding]:
    limits = StuckLimits()
    return [
        *desync(windows, PACE, limits),
        *hangs(windows, PACE, limits),
        *stragglers(windows, SlowLimits()),
    ]


def gist(findings: list[Finding], name: dict[int, int]) -> list[tuple[object, ...]]:
    return sorted(
        (f.kind, sorted(name[r] for r in f.ranks), sorted(name[r] for r in f.waiting), f.certain, f.may_act)
        for f in findings
    )


@given(jobs(), st.integers(0, 2**32))
@CALM
def test_renaming_ranks_renames_the_verdicts(windows: list[RankWindow], seed: int) -> None:
    """Its place within its groups stays: only its name in the job changes, and the order of reports."""
    ranks = [w.rank for w in windows]
    names = ranks[:]
    random.Random(seed).shuffle(names)
    new = dict(zip(ranks, names, strict=True))
    renamed = [replace(w, rank=new[w.rank]) for w in windows]
    random.Random(seed + 1).shuffle(renamed)
    same = dict(zip(ranks, ranks, strict=True))
    assert gist(everything(renamed), same) == gist(everything(windows), new)


def shifted(window: RankWindow, by: int) -> RankWindow:
    moved = tuple(
        Collective(
            c.op, c.group, c.group_seq, c.bytes, c.dtype, c.entered_ns + by,
            c.finished_ns and c.finished_ns + by, c.completion, c.waited, c.peer,
        )
        for c in window.collectives
    )  # fmt: skip
    return replace(
        window,
        taken_ns=window.taken_ns + by,
        started_ns=window.started_ns + by,
        last_activity_ns=window.last_activity_ns + by,
        collectives=moved,
    )


@given(jobs(), st.lists(st.integers(0, 10**18), min_size=4, max_size=4))
@CALM
def test_clocks_of_hosts_do_not_matter(windows: list[RankWindow], offsets: list[int]) -> None:
    moved = [shifted(w, offsets[w.rank // 2]) for w in windows]
    assert everything(moved) == everything(windows)


@given(jobs())
@CALM
def test_nobody_is_blamed_for_not_coming_who_has_come(windows: list[RankWindow]) -> None:
    for found in hangs(windows, PACE, StuckLimits()):
        if found.kind != "hang" or "operation" not in found.inputs:
            continue
        _, number, _, _, group = str(found.inputs["operation"]).split()
        for rank in found.ranks:
            if windows[rank].process.state == "T":
                continue  # in, and stopped: it cannot do its part
            position = next((g for g in windows[rank].groups if g.name == group), None)
            assert position is None or position.entered < int(number[1:])


@given(jobs())
@CALM
def test_a_living_process_at_work_is_never_certain_to_hang(windows: list[RankWindow]) -> None:
    for found in hangs(windows, PACE, StuckLimits()):
        if found.certain and found.kind == "hang":
            assert all(windows[r].process.state == "T" for r in found.ranks)


@given(jobs(), st.sets(st.integers(0, 6)))
@CALM
def test_costs_are_never_negative_and_zero_when_all_are_alike(
    windows: list[RankWindow], ranks: set[int]
) -> None:
    cost = what_if(windows, ranks)
    assert cost.lost_steps_per_s >= 0 and 0 <= cost.share < 1
    alike = [replace(w, steps=windows[0].steps) for w in windows]
    assert what_if(alike, ranks).share == 0 and stragglers(alike, SlowLimits()) == []
