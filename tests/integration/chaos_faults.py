"""Every fault that happens to a host: what it does, and how it is undone. Does not look at what follows."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chaos_stage import CONTROL, NODES, Stage
from disks import fill
from loom_home import wait_for

from torchloom.agent.processes.process import is_alive, start_ticks
from torchloom.chaos import clocks
from torchloom.cli.service.supervisor import HEALTH_EVERY_S

SLOW_BYTES_S = 200_000
SEEN_AFTER_S = HEALTH_EVERY_S + 1.0
JUMPS_S = (150, 3 * 3600, 20 * 3600)
ON_CONTROL = (
    "kill weaver",
    "kill nats",
    "kill supervisor",
    "kill host",
    "hang weaver",
    "hang weaver for good",
    "hang nats",
    "hang supervisor",
    "hang host",
    "cut host",
    "slow host",
    "halves",
    "fill disk",
    "clock ahead",
    "clock back",
)
ON_NODES = (
    "kill agent",
    "kill supervisor",
    "kill agent and supervisor",
    "hang agent",
    "hang supervisor",
    "cut node",
    "cut node from control",
    "slow node",
    "fill disk",
    "clock ahead",
    "clock back",
)
REMOVES_WEAVER = (
    "kill weaver",
    "kill host",
    "hang weaver",
    "hang weaver for good",
    "hang host",
    "cut host",
    "halves",
)
"""The weaver there leads no longer: another one must, or a new process."""
STOPS_TRAINING = ("halves", "cut node")
"""Ranks cannot reach each other as long as it lasts."""
LOSES_NODE = ("hang agent", "cut node", "cut node from control")
"""The node becomes unreachable, which is no reason to restart anything."""
HEALS_MEANWHILE = ("slow host", "slow node", "clock ahead", "clock back")
"""Everything works as well as before as long as it lasts."""
PARTS = {"control": ("supervisor", "weaver", "nats"), "node": ("supervisor", "agent")}


@dataclass(frozen=True)
class Drawn:
    kind: str
    where: str
    """leader, follower or node."""


def deal(chance: random.Random, only: tuple[str, ...] = ()) -> Iterator[Drawn]:
    """Every kind once, in a random order, then again: all are equally frequent. What happens to control
    hosts takes the leader's in every second deck."""
    leads = {kind: chance.random() < 0.5 for kind in ON_CONTROL}
    while True:
        deck = [Drawn(kind, "leader" if leads[kind] else "follower") for kind in ON_CONTROL]
        deck += [Drawn(kind, "node") for kind in ON_NODES]
        deck = [one for one in deck if not only or f"{one.kind} on {one.where}" in only or one.kind in only]
        chance.shuffle(deck)
        yield from deck
        leads = {kind: not leader for kind, leader in leads.items()}


def victim_of(drawn: Drawn, leader: int, chance: random.Random) -> int:
    if drawn.where == "node":
        return chance.choice(NODES)
    return leader if drawn.where == "leader" else chance.choice([host for host in CONTROL if host != leader])


def do(stage: Stage, kind: str, victim: int, chance: random.Random) -> Callable[[], object]:
    """Do it; how to undo it."""
    home, hosts = stage.homes[victim], stage.hosts
    own = PARTS["control" if victim in CONTROL else "node"]
    match kind.split():
        case ["kill", "host"] | ["kill", "agent", "and", "supervisor"]:
            for part in own:
                home.kill(part)
            return lambda: stage.start(victim)
        case ["kill", "supervisor"]:
            home.kill("supervisor")
            return lambda: stage.start(victim)
        case ["kill", part]:
            home.kill(part)
            return lambda: None  # its supervisor starts it again
        case ["hang", part, *for_good]:
            pids = [home.pid(one) for one in (own if part == "host" else (part,))]
            ticks = {pid: start_ticks(pid) for pid in pids}
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            if for_good:  # its supervisor must replace it
                return lambda: wait_for(
                    lambda: not any(is_alive(pid, ticks[pid]) for pid in pids), f"the hung {part} is replaced"
                )
            return lambda: [_wake(pid) for pid in pids]
        case ["slow", _]:
            _limit(stage, victim, SLOW_BYTES_S)
            return lambda: _limit(stage, victim, 0)
        case [
            "halves"
        ]:  # the victim with two nodes on one side, two control hosts with two nodes on the other
            one = (victim, *chance.sample(NODES, 2))
            for host in one:
                hosts.cut(host, [other for other in (*CONTROL, *NODES) if other not in one])
            return lambda: [hosts.mend(host) for host in one]
        case ["cut", "node", "from", "control"]:
            hosts.cut(victim, list(CONTROL))
            return lambda: hosts.mend(victim)
        case ["cut", _]:
            hosts.cut(victim)
            return lambda: hosts.mend(victim)
        case ["fill", "disk"]:
            fill(home.home.root)

            def make_room() -> None:
                if victim in CONTROL:  # once its supervisor has looked, and its server certainly cannot store
                    wait_for(lambda: _stuck_s(stage, victim) > SEEN_AFTER_S, "its server stores nothing")
                (home.home.root / "ballast").unlink()

            return make_room
        case ["clock", way]:
            seconds = chance.choice(JUMPS_S) * (1 if way == "ahead" else -1)
            jumped = Jumped(stage, victim, seconds)
            # With the wrong clock new connections are made, too.
            home.kill(chance.choice(("weaver", "nats")) if victim in CONTROL else "agent")
            return jumped.undo
    raise AssertionError(f"{kind} is no fault")


class Jumped:
    """The wall clock of a host is wrong, for processes that start later too."""

    def __init__(self, stage: Stage, host: int, seconds: int) -> None:
        self._stage, self._host, self._seconds = stage, host, seconds
        self._over = threading.Event()
        self._done: set[tuple[int, int]] = set()
        self._all(seconds)
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def undo(self) -> None:
        self._over.set()
        self._thread.join()
        self._done.clear()
        self._all(0)

    def _keep(self) -> None:
        while not self._over.wait(0.2):
            self._all(self._seconds)

    def _all(self, seconds: int) -> None:
        for pid in self._stage.hosts.processes(self._host):
            if pid != os.getpid() and (one := (pid, start_ticks(pid))) not in self._done:
                with contextlib.suppress(OSError, ValueError):  # it is ending, or has just begun
                    if clocks.jump(pid, seconds):
                        self._done.add(one)


def _stuck_s(stage: Stage, host: int) -> float:
    return float((stage.ask(host, "health") or {}).get("stuck_s", 0.0))


def _limit(stage: Stage, victim: int, bytes_per_s: int) -> None:
    for other in (*CONTROL, *NODES):
        if other != victim:
            stage.hosts.limit(victim, other, bytes_per_s)
            stage.hosts.limit(other, victim, bytes_per_s)


def _wake(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # its supervisor may have replaced it
        os.kill(pid, signal.SIGCONT)
