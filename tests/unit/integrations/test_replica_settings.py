"""Changes of all replicas, with the real code of both sides: no two replicas ever make a step differently.

Only sockets and torchft itself are played: connections break, lines are late, replicas die, fail to commit,
heal and join, and the lighthouse is started again from its record, at random moments.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
import pytest

from torchloom.agent.lighthouse.listeners import Listeners, WorkerLine
from torchloom.core import replica_changes
from torchloom.integrations.replica_settings import ReplicaSettings
from torchloom.model.quorum import QuorumMember, ReplicaChange


class Wire:
    """One connection, in both directions late and in order."""

    def __init__(self, heard: Callable[[Mapping[str, Any]], None]) -> None:
        self._heard = heard
        self.late: list[Mapping[str, Any]] = []
        self.coming: list[Mapping[str, Any]] = []

    def write(self, line: bytes) -> None:
        message = msgspec.json.decode(line)
        self.coming.append(message)
        if message["asked"]:
            self.arrive()  # the rank waits for it

    def arrive(self) -> None:
        while self.coming:
            self._heard(self.coming.pop(0))

    def close(self) -> None: ...


class Replica:
    """A worker of one replica, as torchft and the probe would drive it."""

    def __init__(self, world: World, door: str, rank: int, step: int) -> None:
        self.world, self.door, self.rank, self.step = world, door, rank, step
        self.made = 0
        self.applied: list[int] = []
        """Versions in force here."""
        self.done: list[tuple[str, int]] = []
        """Pauses and saves, and with which commit."""
        self.wire: Wire | None = None
        self.settings = ReplicaSettings(self.send, world.doors[door], rank)

    ready = property(lambda self: self.made > 0)

    def problem(self, values: Mapping[str, Any]) -> str:
        return "no such setting" if "bad" in values else ""

    def apply(
        self, version: int, values: Mapping[str, Any], step: int
    ) -> tuple[str, list[tuple[str, Any, Any]]]:
        self.applied.append(version)
        return "", [("lr", 0, values["lr"])]

    def why_not(self, kind: str) -> str:
        return ""

    def carry_out(self, kind: str) -> str:
        self.done.append((kind, self.step))
        return ""

    def connect(self) -> None:
        self.wire = Wire(lambda m: self.settings.heard(m["changes"], m["asked"]))
        self.world.listeners._writers[cast(Any, self.wire)] = None
        for message in self.settings.hello():
            self.send(message)
        self.world.deliver(self)
        self.wire.arrive()

    def lose(self) -> None:
        if self.wire is not None:
            self.world.forget(self.wire)
        self.wire = None

    def send(self, message: Mapping[str, Any]) -> None:
        if self.wire is None:
            if "ask" not in message:
                return
            self.connect()  # the thread that listens connects again, and then the question is answered
        assert self.wire is not None
        self.wire.late.append(message)
        if "ask" in message:
            self.world.deliver(self)

    def commit(self) -> None:
        self.step += 1
        self.settings.committed(self.step, self)
        self.world.note(self)
        self.made += 1


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.doors: dict[str, int] = {}
        self.record: list[ReplicaChange] = []
        self.listeners = Listeners(self.record, self.doors, lambda: None, lambda door: None)
        self.ranks: list[Replica] = []
        self.versions = 0
        self.used: dict[int, tuple[int, ...]] = {}
        """By step, the versions in force."""

    def note(self, rank: Replica) -> None:
        mine = tuple(sorted(rank.applied))
        assert self.used.setdefault(rank.step, mine) == mine, f"step {rank.step} of {rank.door}"

    def deliver(self, rank: Replica) -> None:
        wire = rank.wire
        while wire is not None and wire.late:
            line = msgspec.convert(wire.late.pop(0), WorkerLine)
            self.listeners._take(cast(Any, wire), line)

    def forget(self, wire: Wire) -> None:
        who = self.listeners._writers.pop(cast(Any, wire), None)
        if who is not None:
            replica_changes.disconnected(self.listeners._board, who)

    def join(self, name: str, world: int, step: int) -> None:
        self.doors[name] = 4000 + len(self.doors) + 100 * len(self.used) + self.versions
        for rank in range(world):
            self.ranks.append(Replica(self, name, rank, step))
            self.ranks[-1].connect()

    def restart(self) -> None:
        """The lighthouse dies and begins again with what it had saved."""
        self.record = msgspec.json.decode(msgspec.json.encode(self.record), type=list[ReplicaChange])
        for rank in self.ranks:
            rank.wire = None
        self.listeners = Listeners(self.record, self.doors, lambda: None, lambda door: None)
        for rank in self.ranks:
            rank.connect()

    def step(self) -> None:
        """One quorum of all replicas, and their commits."""
        newest = max(rank.step for rank in self.ranks)
        for lost in [step for step in self.used if step > newest]:
            del self.used[lost]  # made only by replicas that have died since: it is made again
        firsts = [rank for rank in self.ranks if rank.rank == 0]
        sizes = {r.door: sum(o.door == r.door for o in self.ranks) for r in firsts}
        members = [(r.door, QuorumMember(r.door, r.step, sizes[r.door], False, 0, b"")) for r in firsts]
        self.listeners.decide(members)
        for rank in self.ranks:
            if self.chance.random() < 0.1:
                rank.lose()
            rank.settings.quorum_formed()
            rank.step = newest  # one that was behind heals
        failing = {r.door for r in firsts if self.chance.random() < 0.15}
        for rank in self.ranks:
            if rank.door not in failing:
                rank.commit()
            if rank.wire is None:
                rank.connect()
            elif self.chance.random() < 0.7:
                self.deliver(rank)
            if rank.wire is not None and self.chance.random() < 0.5:
                rank.wire.arrive()

    def disturb(self) -> None:
        names = list(dict.fromkeys(rank.door for rank in self.ranks))
        match self.chance.randrange(8):
            case 0 if len(names) > 1:
                dead = self.chance.choice(names)
                for rank in [rank for rank in self.ranks if rank.door == dead]:
                    rank.lose()
                    self.ranks.remove(rank)
                del self.doors[dead]
            case 1 if len(names) < 4:
                self.join(f"t-r{len(names)}.g{len(self.used) + self.versions}", self.chance.randint(1, 2), 0)
            case 2:
                self.restart()
            case 3 | 4:
                self.versions += 1
                bad = {"bad": 1} if self.chance.random() < 0.2 else {"lr": self.versions}
                kind = "set" if "bad" in bad else self.chance.choice(("set", "set", "pause", "checkpoint"))
                self.listeners.propose(self.versions, bad, 0, kind)
            case 5 if self.versions:
                self.listeners.withdraw(self.versions, "cancelled")


@pytest.mark.parametrize("seed", range(12))
def test_no_two_replicas_make_a_step_with_different_settings(seed: int) -> None:
    world = World(seed)
    for index in range(2):
        world.join(f"t-r{index}.g1", 1, 0)
    for _ in range(120):
        world.disturb()
        world.step()
    for _ in range(20):  # nothing disturbs any more: what is open is decided and reported
        world.step()
    for rank in world.ranks:
        world.deliver(rank)
    outcomes = [world.listeners.outcome(version) for version in range(1, world.versions + 1)]
    assert world.versions and all(outcome is not None for outcome in outcomes), outcomes
    applied = [one for one in outcomes if one is not None and one.step is not None]
    assert applied, "some were applied"
    for rank in world.ranks:
        for kind, step in rank.done:
            assert step in {c.step for c in world.record if c.kind == kind}, "only with the commit decided"
    for change in world.record:
        if change.step is not None and change.kind == "set":
            assert change.version in world.used[max(world.used)]
            assert change.version in world.used.get(change.step, (change.version,)), "from the step reported"
