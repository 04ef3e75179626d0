"""For any changes, decided in any order for any steps: at every step and place the newest decision holds.

The oracle looks at single places (one param group, one setting) and at nothing but numbers, so that it shares
no code with what it checks.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchloom.core.config import schedule as schedules
from torchloom.core.config.box_codec import pack_schedule, unpack_schedule
from torchloom.core.config.settings import parse_address
from torchloom.model.transaction.config import Entry, Schedule
from torchloom.probe.steering.annotations import form_of
from torchloom.probe.steering.config import Config
from torchloom.probe.steering.declared import Declared, Registry
from torchloom.probe.steering.overrides import Overrides
from torchloom.wire.blackbox import SCHEDULE, SIZE, View

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
LAST = 30
PLACES = ("optimizer0.lr@0", "optimizer0.lr@1", "optimizer1.lr@0", "dropout", "max_steps")
NAMED = {
    "lr": PLACES[:3],
    "lr@0": (PLACES[0], PLACES[2]),
    "lr@1": PLACES[1:2],
    "optimizer0.lr": PLACES[:2],
    "optimizer1.lr@0": PLACES[2:3],
    "dropout": PLACES[3:4],
    "max_steps": PLACES[4:],
}
words = st.one_of(
    st.integers(1, 99).map(float), st.just({"own": True}), st.integers(1, 9).map(lambda n: {"scale": n / 10})
)
alone = st.sampled_from([["lr"], ["lr@0"], ["lr@1"], ["optimizer0.lr"], ["optimizer1.lr@0"], ["dropout"]])
several = st.sampled_from([["lr@1", "dropout"], ["lr", "max_steps"], ["dropout", "max_steps"], ["max_steps"]])


@st.composite
def histories(draw: st.DrawFn) -> Schedule:
    """Changes numbered as they were decided; crashes and plans put their steps into any order."""
    found: list[Entry] = []
    for version in range(1, draw(st.integers(1, 9)) + 1):
        names = draw(st.one_of(alone, several))
        values: dict[str, object] = {}
        for name in names:
            value = draw(words) if "lr" in name else float(draw(st.integers(1, 99)))
            values[name] = LAST + int(value) if name == "max_steps" and isinstance(value, float) else value
        found.append(Entry(version, draw(st.integers(0, LAST)), values))
    schedule: Schedule = ()
    for entry in draw(st.permutations(found)):
        schedule = schedules.record(schedule, entry)
    return schedule


def decided(schedule: Schedule, step: int) -> dict[str, object]:
    """The oracle: place by place the value of the newest decision that is due."""
    found: dict[str, object] = {}
    for entry in sorted(schedule, key=lambda entry: entry.version):
        if entry.step <= step:
            found |= {place: value for name, value in entry.values.items() for place in NAMED[name]}
    return found


def by_place(values: dict[str, object]) -> dict[str, object]:
    """What an ordered set of values says about every single place."""
    found: dict[str, object] = {}
    for name, value in values.items():
        found |= {place: value for place in PLACES if parse_address(name).covers(parse_address(place))}
    return found


class Rank:
    """The part of a worker that holds values, started after step `made`."""

    def __init__(self, schedule: Schedule, made: int) -> None:
        view = View(memoryview(bytearray(SIZE)))
        view.write_blob(SCHEDULE, pack_schedule(schedule).encode())
        self.registry, self.overrides = Registry(), Overrides()
        self.registry.add(Declared(form_of("dropout", float), lambda value: None, 0.0))
        groups = [[{"lr": 0.5, "params": []}, {"lr": 0.5, "params": []}], [{"lr": 0.5, "params": []}]]
        optimizers = [type("Optimizer", (), {"param_groups": one})() for one in groups]
        self.config = Config(view, self.overrides, self.registry, lambda: list(enumerate(optimizers)))
        self.config.begin(made)

    def holds(self) -> dict[str, object]:
        own = {"dropout": self.registry.by_name["dropout"].value, "max_steps": self.config.max_steps}
        return {**by_place(self.overrides.words), **{n: v for n, v in own.items() if v not in (0.0, None)}}


@CALM
@given(histories())
def test_the_newest_decision_that_is_due_holds_at_every_step(schedule: Schedule) -> None:
    for step in range(LAST + 2):
        assert by_place(schedules.merge(schedules.in_force(schedule, step))) == decided(schedule, step)


@CALM
@given(histories())
def test_what_is_superseded_makes_no_difference_and_nothing_else_is(schedule: Schedule) -> None:
    given_up = schedules.superseded(schedule)
    left = tuple(entry for entry in schedule if entry.version not in given_up)
    for step in range(LAST + 2):
        assert decided(left, step) == decided(schedule, step)
    versions = {entry.version: entry for entry in schedule}
    for version, by in given_up.items():
        assert by > version and versions[by].step <= versions[version].step


@CALM
@given(histories(), st.integers(0, LAST))
def test_a_rank_holds_at_every_step_what_the_job_records(schedule: Schedule, made: int) -> None:
    """Wherever it starts: what is due at a step is applied there, and nothing older over something newer."""
    rank = Rank(schedule, made)
    assert rank.holds() == decided(schedule, made)
    for step in range(made + 1, LAST + 2):
        rank.config.follow(step)
        assert rank.holds() == decided(schedule, step), step
        assert rank.config.version == schedules.version_at(schedule, step)


@CALM
@given(histories(), st.data())
def test_a_change_made_after_a_crash_holds_against_older_ones_ahead(
    schedule: Schedule, data: st.DataObject
) -> None:
    """Ranks apply newer changes among those that they follow; the next generation sees the same values."""
    made = data.draw(st.integers(0, LAST - 1))
    rank, version = Rank(schedule, made), max(entry.version for entry in schedule)
    for step in range(made + 1, LAST + 2):
        rank.config.follow(step)
        if data.draw(st.booleans()):
            version += 1
            values: dict[str, object] = {
                data.draw(st.sampled_from(["lr", "lr@1", "dropout"])): float(version)
            }
            rank.config.apply(rank.config.snapshot(), version, values, step)
            schedule = schedules.record(schedule, Entry(version, step, values))
        assert rank.holds() == decided(schedule, step), step
    again = Rank(schedule, made)
    for step in range(made + 1, LAST + 2):
        again.config.follow(step)
    assert again.holds() == rank.holds()


@CALM
@given(histories(), st.integers(1, LAST), st.integers(0, LAST), st.sampled_from(["", "keep", "revert"]))
def test_going_back_live_is_what_the_job_records(
    schedule: Schedule, today: int, back: int, choice: str
) -> None:
    made = min(today, back)
    rank = Rank(schedule, 0)
    for step in range(1, today + 1):
        rank.config.follow(step)
    before = rank.holds()
    rank.config.rebase(rank.config.snapshot(), made, choice, today=today)
    recorded = schedule
    if choice == "keep" or choice == "revert":
        recorded = schedules.roll_back(schedule, made + 1, choice, today=today)
    if choice == "keep":
        assert rank.holds() == before
        assert made == today or before == decided(recorded, made + 1)
        assert {e.version for e in recorded} == {e.version for e in schedule}
    for step in range(made + 1, LAST + 2):
        rank.config.follow(step)
        assert rank.holds() == decided(recorded, step), step


@CALM
@given(histories(), st.integers(150, 2000))
def test_packing_changes_nothing_for_a_step_that_is_still_listed(schedule: Schedule, most: int) -> None:
    try:
        short = unpack_schedule(pack_schedule(schedule, most))
    except ValueError:
        return  # not even what holds at the end fits
    for step in range(min((entry.step for entry in short), default=0), LAST + 2):
        assert decided(short, step) == decided(schedule, step)
