"""A simulated worker and the store of its generation, around the real `Rank`: the smallest shell.

`Worker.advance` does one thing and returns, so that histories can interleave ranks as finely as they like.
It keeps its own log of what it applied and passed, and measures how long it stood for whom; the checks use
these and never an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torchloom.core.transaction.attempt import COMMIT, decision_key
from torchloom.core.transaction.packing import pack_answers, pack_mail, unpack_answers, unpack_mail
from torchloom.core.transaction.rank import STORE_TIMEOUT_NS, Rank
from torchloom.core.transaction.rank_actions import (
    CompareSet,
    Do,
    EndWorker,
    Hold,
    Look,
    Pass,
    Run,
    StopScript,
    Undo,
    Wait,
)
from torchloom.model.transaction.messages import BETWEEN, Answer, AttemptId, Kind, Mail, Said, post


class StoreAway(Exception):
    """No answer; whether the request was carried out nobody knows."""


@dataclass
class Store:
    """First writer wins. `moods` are spent one per request: refuse it, or do it and lose the answer."""

    values: dict[str, str] = field(default_factory=dict)
    away: bool = False
    moods: list[str] = field(default_factory=list)

    def compare_set(self, key: str, value: str) -> str:
        mood = self.moods.pop(0) if self.moods else ""
        if self.away or mood == "refuse":
            raise StoreAway
        value = self.values.setdefault(key, value)
        if mood == "lose":
            raise StoreAway
        return value

    def look(self, keys: tuple[str, ...]) -> dict[str, str]:
        if self.away:
            raise StoreAway
        return {key: self.values[key] for key in keys if key in self.values}


@dataclass
class Worker:
    """One rank's process, its black box (mail, answers) and its own record of what it did."""

    rank: int
    store: Store
    machine: Rank
    fails: Callable[[AttemptId, int], str]
    """What goes wrong when a rank runs an attempt: "", "run", "undo" or "refuse"."""
    last_step: int
    skips: Callable[[int, int], bool]
    """Whether a rank makes a step without having been at the place before it that lies between the steps."""
    mail: bytes = b""
    published: bytes = b""
    step: int = 0
    at_boundary: bool = False
    """At either place of its step; else in the midst of it, or on the way from the one place to the other."""
    been_between: bool = False
    """It has left the place between the steps, or gone past it, and comes to the boundary of its step."""
    alive: bool = True
    how: str = ""
    doing: Do = field(default_factory=Pass)
    waited_ns: dict[str, int] = field(default_factory=dict)
    """Of the present boundary."""
    in_force: dict[AttemptId, int] = field(default_factory=dict)
    """What it runs with → the step at which it began to."""
    resolved: dict[AttemptId, bool] = field(default_factory=dict)
    """Attempts this rank is done with → whether they are in force."""

    # -- the agent's side of the box ------------------------------------------------------------
    def put(self, mail: Mail) -> None:
        self.mail = pack_mail(post(unpack_mail(self.mail), mail))

    def read(self) -> tuple[Answer, ...]:
        return unpack_answers(self.published)

    # -- the worker -----------------------------------------------------------------------------
    def until_ns(self) -> int | None:
        """When it must be woken at the latest."""
        return self.doing.until_ns if isinstance(self.doing, CompareSet | Look | Wait) else None

    def time_passed(self, ns: int) -> None:
        match self.doing:
            case Wait() if self.machine.held:
                pass  # paused anyway
            case Wait(keys=keys):
                self._count("votes" if len(keys) > 1 else "mail", ns)
            case CompareSet() | Look():
                self._count("store", ns)
            case _:
                pass

    def _count(self, whom: str, ns: int) -> None:
        self.waited_ns[whom] = self.waited_ns.get(whom, 0) + ns

    def advance(self, now_ns: int) -> None:
        """One thing: walk to the next boundary, or do there what the machine says."""
        if not self.alive:
            return
        if not self.at_boundary:
            self._arrive(now_ns)
            if not self.alive:
                return
        self._read_mail()
        self.doing = self.machine.next(now_ns)
        self._publish()
        self._perform(now_ns)
        self._publish()
        self._check_waiting()

    def _arrive(self, now_ns: int) -> None:
        """Two places a step: between the steps, then the boundary."""
        if not self.been_between:
            if self.step == self.last_step:
                self.end_script(now_ns, "finished")
                return
            self.step += 1
            self.been_between = self.skips(self.rank, self.step)
        self.at_boundary, self.waited_ns = True, {}
        self.machine.arrive(self.step, 50_000_000, between=not self.been_between)

    def has_passed(self, kind: Kind, at_step: int) -> bool:
        """Whether the place of step `at_step` for this kind is behind it."""
        if self.step != at_step:
            return self.step > at_step
        if kind in BETWEEN:
            return self.been_between
        return not self.at_boundary and not self.been_between

    def end_script(self, now_ns: int, how: str) -> None:
        self.machine.leave()
        for _ in range(20):
            do = self.machine.next(now_ns)
            if isinstance(do, Pass | EndWorker):
                break
            assert isinstance(do, CompareSet)
            self._ask(do, now_ns)
        else:
            raise AssertionError("a rank does not come to its end")
        self._publish()
        self.alive, self.how, self.doing = False, how, Pass()

    def kill(self, how: str) -> None:
        self.alive, self.how, self.doing = False, how, Pass()

    def _read_mail(self) -> None:
        for mail in unpack_mail(self.mail):
            refuses = self.fails(mail.proposal.attempt, self.rank) == "refuse"
            self.machine.receive(mail, "no such setting here" if refuses else "")

    def _publish(self) -> None:
        self.published = pack_answers(self.machine.answers.values())
        for name, answer in self.machine.answers.items():
            if answer.said is Said.APPLIED and name not in self.resolved:
                self.in_force.setdefault(name, self.step)
                self.resolved[name] = True
            elif answer.said in (Said.NOT_APPLIED, Said.UNDONE):
                self.resolved.setdefault(name, False)

    def _perform(self, now_ns: int) -> None:
        match self.doing:
            case Pass():
                self._check_not_alone()
                self.at_boundary = False
                self.been_between = self.machine.between  # the boundary comes next, or the step is made
            case CompareSet():
                self._ask(self.doing, now_ns)
            case Look(keys=keys):
                try:
                    self.machine.saw(self.store.look(keys))
                except StoreAway:
                    self.machine.store_failed("connection refused", now_ns)
            case Wait(keys=keys):
                try:
                    self.machine.saw(self.store.look(keys))
                except StoreAway:
                    pass
            case Run(proposal=proposal):
                assert proposal.kind in (Kind.SET, *BETWEEN)
                assert (proposal.kind in BETWEEN) is self.machine.between, "run at a wrong place"
                self.in_force[proposal.attempt] = self.step
                trouble = self.fails(proposal.attempt, self.rank) == "run"
                self.machine.ran("ValueError: no" if trouble else "", (("lr", 0.1, 0.2),))
            case Undo(proposal=proposal):
                trouble = self.fails(proposal.attempt, self.rank) == "undo"
                if not trouble:
                    del self.in_force[proposal.attempt]
                self.machine.undone("RuntimeError: no way back" if trouble else "")
            case Hold():
                pass
            case StopScript():
                self.end_script(now_ns, "stopped")
            case EndWorker(why=why):
                self.kill(f"ended itself: {why}")

    def _ask(self, do: CompareSet, now_ns: int) -> None:
        try:
            self.machine.store_said(do.key, self.store.compare_set(do.key, do.value))
        except StoreAway:
            self.machine.store_failed("connection refused", now_ns)

    def _check_not_alone(self) -> None:
        """A paused rank goes on only when all do: its step has collectives that the others would not join."""
        if self.machine.held and self.machine.world > 1:
            committed = [key for key, value in self.store.values.items() if value == COMMIT]
            mine = [decision_key(attempt.proposal.attempt) for attempt in self.machine._armed()]
            assert set(mine) & set(committed), "a paused rank went on alone"

    def _check_waiting(self) -> None:
        """The promise to the training: bounded, each by its own limit, whatever happens elsewhere."""
        assert self.waited_ns.get("mail", 0) <= CONTROL_TIMEOUT_NS, "waited too long for the control plane"
        assert self.waited_ns.get("votes", 0) <= VOTE_TIMEOUT_NS, "waited too long for votes"
        assert self.waited_ns.get("store", 0) <= STORE_TIMEOUT_NS * 4, "waited too long for the store"


CONTROL_TIMEOUT_NS = 1_000_000_000
VOTE_TIMEOUT_NS = 1_000_000_000
