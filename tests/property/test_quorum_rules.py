"""Whatever replicas do, and whoever is lost, cut off or left out: no quorum breaks the rules.

Replicas that train together have the same weights: torchft takes equal numbers of steps for that.
"""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from torchloom.core.quorum import (
    QuorumCandidate,
    QuorumRules,
    QuorumState,
    excuse,
    fall_silent,
    form,
    leave,
    recalled,
    repeated,
    settle,
)
from torchloom.model.quorum import QuorumMember

SIZE = 4
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["ask", "ask", "ask", "ask again", "die", "leave out", "take back", "wait", "cut", "mend"]
        ),
        st.integers(0, SIZE - 1),
        st.booleans(),
    ),
    max_size=120,
)
Events = list[tuple[str, int, bool]]
"""The last part: whether a replica commits a step in which another one was lost. torchft lets each decide."""


FORK: Events = [
    *(("ask", replica, False) for replica in (0, 1, 2, 3, 0, 1, 2, 3)),
    ("cut", 1, False),
    ("ask", 1, True),  # it has received all of the step, the others have not
    *(("ask", replica, False) for replica in (0, 2, 3)),
    ("wait", 0, False),
    ("mend", 1, False),
    *(("ask", replica, False) for replica in (1, 0, 2, 3)),  # they have made that step, too, without it
]


class Life:
    """Replicas as a lighthouse sees them; each door belongs to one process of a replica."""

    def __init__(self, least: int) -> None:
        self.state, self.rules, self.now_s = QuorumState(), QuorumRules(SIZE, least), 0.0
        self.lives = [0] * SIZE
        self.steps = [0] * SIZE
        self.weights = [0] * SIZE
        """By which attempt at a step each has its weights."""
        self.attempts = 0
        self.making: dict[int, tuple[int, list[tuple[int, int]]]] = {}
        """Which attempt each replica makes, and with which lives of which replicas."""
        self.cut: set[int] = set()
        """Replicas that the lighthouse does not hear."""

    def id(self, replica: int) -> str:
        return f"r{replica}.{self.lives[replica]}"

    def member(self, replica: int) -> QuorumMember:
        step = self.steps[replica]
        return QuorumMember(self.id(replica), step, 1, False, 0, f"{self.id(replica)} {step}".encode())

    def conclude(self, replica: int, commits: bool) -> None:
        """It ends its step before it asks for the next quorum."""
        attempt, together = self.making.pop(replica, (0, []))
        whole = all(self.lives[one] == life and one not in self.cut for one, life in together)
        if together and (whole or commits):
            self.steps[replica] += 1
            self.weights[replica] = attempt

    def event(self, kind: str, replica: int, commits: bool = False) -> None:
        self.pass_time(0.1)
        if kind == "ask":
            self.conclude(replica, commits)
        if replica in self.cut and kind in ("ask", "ask again"):
            return
        id, door = self.id(replica), f"door-{self.id(replica)}"
        match kind:
            case "ask":
                known = self.state.candidates.setdefault(id, QuorumCandidate(door, self.now_s))
                known.member, known.asked_s = self.member(replica), known.asked_s or self.now_s
            case "ask again":
                again = repeated(self.now_s, self.state, self.rules, self.member(replica))
                if again.members:
                    ids = tuple(member.replica_id for member in again.members)
                    assert ids == self.state.previous, "the same quorum as before"
                    assert set(ids) <= self.state.candidates.keys(), "and none of its members has died"
            case "die":
                leave(self.state, door)
                self.state.left_out.pop(door, None)
                self.lives[replica] += 1
                self.steps[replica] = self.weights[replica] = 0
                self.making.pop(replica, None)
            case "leave out" if id in self.state.candidates:
                self.state.left_out[door] = "slow"
            case "take back":
                self.state.left_out.pop(door, None)
            case "wait":
                self.pass_time(100.0)
            case "cut":
                self.cut.add(replica)
            case "mend":
                self.cut.discard(replica)
                self.pass_time(0.0)
        self.look()

    def pass_time(self, seconds: float) -> None:
        """Those who are not cut off send heartbeats."""
        self.now_s += seconds
        heard = {self.id(replica) for replica in range(SIZE) if replica not in self.cut}
        for id, candidate in self.state.candidates.items():
            if id in heard:
                candidate.seen_s = self.now_s

    def look(self) -> None:
        gone = fall_silent(self.now_s, self.state, self.rules, near=())
        assert set(gone) <= {self.id(replica) for replica in self.cut}, "who is heard never counts as silent"
        assert not set(gone) & self.state.candidates.keys() and not set(gone) & self.state.answered.keys()
        if recalled(self.now_s, self.state, self.rules):
            self.state.left_out = {}
        before, formed = self.state.previous, form(self.now_s, self.state, self.rules)
        ids = [member.replica_id for member in formed.members]
        if not ids:
            return
        doors = {self.state.candidates[id].door for id in ids}
        assert not doors & self.state.left_out.keys(), "who is left out takes part in nothing"
        assert len(ids) >= self.rules.min_replicas
        survivors = {id for id in before if id in self.state.candidates}
        if survivors and self.state.formed:
            allowed = {id for id in survivors if self.state.candidates[id].door not in self.state.left_out}
            assert allowed & set(ids), "no quorum forgets all that have the newest weights"
        settle(self.state, formed.members)
        self.train([replica for replica in range(SIZE) if self.id(replica) in ids])

    def train(self, members: list[int]) -> None:
        """As torchft: whoever has made fewer steps than another gets that one's weights."""
        said = {one: self.state.outdated.get(self.id(one), self.steps[one]) for one in members}
        newest = max(said.values())
        sources = [one for one in members if said[one] == newest]
        weights = {self.weights[one] for one in sources}
        assert len(weights) == 1, "replicas that train together have the same weights"
        assert newest == max(self.steps[one] for one in members), "and no commit is lost"
        self.attempts += 1
        for one in members:
            self.steps[one], self.weights[one] = newest, *weights
            self.making[one] = self.attempts, [(other, self.lives[other]) for other in members]


@given(st.integers(1, SIZE), EVENTS)
@example(1, FORK)
def test_no_sequence_of_events_breaks_the_rules(least: int, events: Events) -> None:
    life = Life(least)
    for event in events:
        life.event(*event)


@given(st.integers(1, SIZE - 1), EVENTS)
def test_once_everybody_asks_there_is_a_quorum(least: int, events: Events) -> None:
    """Also if somebody is left out."""
    life = Life(least)
    for event in events:
        life.event(*event)
    for replica in range(SIZE):
        life.event("mend", replica)
    before = life.attempts
    for replica in range(SIZE):
        life.event("ask", replica)
    assert life.attempts > before


@given(st.integers(1, SIZE - 1), EVENTS, st.integers(0, SIZE - 1))
def test_once_a_replica_is_cut_off_the_others_have_a_quorum_without_it(
    least: int, events: Events, lost: int
) -> None:
    life = Life(least)
    for event in events:
        life.event(*event)
    for replica in range(SIZE):
        life.event("take back", replica)
        life.event("cut" if replica == lost else "mend", replica)
    life.event("wait", lost)
    before = life.attempts
    for replica in range(SIZE):
        life.event("ask", replica)
    if not life.state.formed:
        life.event("wait", lost)  # the first quorum waits for all, for a while
    assert life.attempts > before and life.id(lost) not in life.state.previous


@given(st.floats(0.6, 1000.0))
def test_a_lighthouse_that_did_not_run_takes_nobody_for_silent(late_s: float) -> None:
    life = Life(1)
    for replica in range(SIZE):
        life.event("ask", replica)
    life.now_s += late_s
    excuse(life.state, late_s)
    assert not fall_silent(life.now_s, life.state, life.rules, near=())
