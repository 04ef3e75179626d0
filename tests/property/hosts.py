"""Simulated hosts and agents for the property tests: they obey the contract of the real ones, on a bad day.

A host keeps what survives its agent (processes, unread black boxes, the journal of ended incarnations); a
session is one life of its agent. What goes wrong, and when, is the business of world.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torchloom.model.effects import (
    Effect,
    ReleaseMemory,
    RemoveJobFiles,
    StartRendezvous,
    StartWorkers,
    StopRendezvous,
    StopWorkers,
    WarmSpawner,
)
from torchloom.model.events import (
    EffectDone,
    EffectFailed,
    Envelope,
    Event,
    FirstStep,
    NodeJoined,
    RendezvousLost,
    RendezvousStarted,
    StartedWorker,
    WorkerExited,
    WorkersStarted,
)
from torchloom.model.node import Inventory, LiveWorker, RendezvousAddress, RendezvousRef
from torchloom.model.worker import EndRecord, Exit, WorkerRef

KILLED = Exit(None, 9, "spawner")
TERMINATED = Exit(None, 15, "spawner")
FINISHED = Exit(0, None, "spawner")
UNSEEN = Exit(None, None, "inventory")


@dataclass
class Process:
    order: str
    """Id of the effect that started it."""
    stopping: bool = False
    stepped: bool = False
    steps: int = 0


@dataclass
class Session:
    """What an agent forgets when it dies."""

    number: int
    name: str
    queue: list[Envelope] = field(default_factory=list)
    answers: dict[str, Envelope] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    barred: set[WorkerRef] = field(default_factory=set)
    """Incarnations that were stopped before they were started."""
    stops: list[tuple[str, set[WorkerRef]]] = field(default_factory=list)


class Host:
    """One node. `on_start` is called before a worker process comes to life, to check that it may."""

    def __init__(self, node: str, slots: int, on_start: Callable[[WorkerRef], None]) -> None:
        self.node = node
        self.slots = slots
        self.boot = 1
        self.home = ""
        self.processes: dict[WorkerRef, Process] = {}
        self.unread: dict[WorkerRef, WorkerExited] = {}
        self.ended: set[tuple[str, WorkerRef]] = set()
        self.stores: dict[RendezvousRef, int] = {}
        self.session: Session | None = None
        self.fail_next = False
        self._sessions = 0
        self._names = 0
        self._on_start = on_start

    # -- the agent's life -----------------------------------------------------------------------
    def start_agent(self) -> None:
        self._sessions += 1
        self.session = Session(self._sessions, f"s{self._sessions} of {self.node}")
        self.join()
        for exited in self.unread.values():
            self.say(exited)

    def kill_agent(self) -> None:
        self.session = None

    def reboot(self) -> None:
        self.session = None
        self.boot += 1
        self.processes.clear()
        self.unread.clear()
        self.stores.clear()

    def join(self) -> None:
        if self.session is None:
            return
        inventory = Inventory(
            hostname=self.node,
            address=f"10.0.0.{self.node[-1]}",
            boot_id=f"boot-{self.boot}",
            home=self.home,
            max_workers=self.slots,
            workers=tuple(LiveWorker(ref, 1000) for ref in self.processes),
            exits_to_come=tuple(self.unread),
            stores=tuple(self.stores),
        )
        self.say(NodeJoined(node=self.node, session=self.session.name, inventory=inventory))

    def say(self, event: Event, effect: str = "") -> None:
        """Queue an event; the stream gets them in this order. Without an agent it is lost."""
        if self.session is None:
            return
        self._names += 1
        envelope = Envelope(
            f"{self.node}-{self._names}", f"agent/{self.node}", event, session=self.session.name
        )
        self.session.queue.append(envelope)
        if effect:
            self.session.answers[effect] = envelope

    def stored(self, envelope: Envelope) -> None:
        """The stream acknowledged an event: a black box that was reported may go."""
        if isinstance(envelope.body, WorkerExited):
            self.unread.pop(envelope.body.ref, None)

    # -- commands -------------------------------------------------------------------------------
    def obey(self, effect: Effect, die_after: int | None = None) -> None:
        """Do an effect at most once; an answer that is known is given again. `die_after` workers it dies."""
        session = self.session
        if session is None:
            return
        answer = session.answers.get(effect.id)
        failed = answer is not None and isinstance(answer.body, EffectFailed)
        again = isinstance(effect, StopWorkers) and effect.strays and failed
        if effect.id in session.taken and not again:
            if effect.id in session.answers:
                session.queue.append(session.answers[effect.id])
            return
        session.taken.add(effect.id)
        failing, self.fail_next = self.fail_next, False
        match effect:
            case StartRendezvous():
                self._start_store(effect, failing)
            case StopRendezvous():
                self.stores.pop(effect.store, None)
                self.say(EffectDone(node=self.node, effect=effect.id), effect.id)
            case StartWorkers():
                self._start_workers(effect, failing, die_after)
            case StopWorkers() if failing:
                self.say(EffectFailed(node=self.node, effect=effect.id, why="no permission"), effect.id)
            case StopWorkers():
                self._stop_workers(session, effect)
            case WarmSpawner() if failing:
                self.say(EffectFailed(node=self.node, effect=effect.id, why="no memory"), effect.id)
            case WarmSpawner():
                self.say(EffectDone(node=self.node, effect=effect.id), effect.id)
            case RemoveJobFiles() | ReleaseMemory():
                self.say(EffectDone(node=self.node, effect=effect.id), effect.id)

    def _start_store(self, effect: StartRendezvous, failing: bool) -> None:
        if failing and effect.store not in self.stores:
            self.say(EffectFailed(node=self.node, effect=effect.id, why="no port is free"), effect.id)
            return
        port = self.stores.setdefault(effect.store, 20000 + len(self.stores))
        address = RendezvousAddress(effect.host, port)
        self.say(
            RendezvousStarted(node=self.node, effect=effect.id, store=effect.store, address=address),
            effect.id,
        )

    def _start_workers(self, effect: StartWorkers, failing: bool, die_after: int | None) -> None:
        assert self.session is not None
        refs = [launch.ref for launch in effect.launches]
        known = any(ref in self.processes or (effect.id, ref) in self.ended for ref in refs)
        if any(ref in self.session.barred for ref in refs) or (failing and not known):
            self.say(EffectFailed(node=self.node, effect=effect.id, why="the script is missing"), effect.id)
            return
        for count, ref in enumerate(refs):
            if count == die_after:
                self.kill_agent()
                return
            if ref in self.processes or (effect.id, ref) in self.ended:
                continue
            self._on_start(ref)
            self.processes[ref] = Process(effect.id)
        living = tuple(StartedWorker(ref, 1000) for ref in refs if ref in self.processes)
        self.say(WorkersStarted(node=self.node, effect=effect.id, workers=living), effect.id)

    def _stop_workers(self, session: Session, effect: StopWorkers) -> None:
        for ref in effect.workers:
            if ref in self.processes:
                self.processes[ref].stopping = True
            elif ref not in self.unread:
                session.barred.add(ref)
                self.say(
                    WorkerExited(node=self.node, ref=ref, exit=UNSEEN, at_ns=0, activity="never started")
                )
        session.stops.append((effect.id, {ref for ref in effect.workers if ref in self.processes}))
        if effect.grace_s == 0:
            for ref in [ref for ref in effect.workers if ref in self.processes]:
                self.end(ref, KILLED, 0)
        self._finish_stops()

    def _finish_stops(self) -> None:
        session = self.session
        if session is None:
            return
        for effect, refs in list(session.stops):
            if not refs & self.processes.keys():
                session.stops.remove((effect, refs))
                self.say(EffectDone(node=self.node, effect=effect), effect)

    # -- the life of processes ------------------------------------------------------------------
    def end(self, ref: WorkerRef, exit: Exit, now_ns: int, end: EndRecord | None = None) -> None:
        process = self.processes.pop(ref)
        event = WorkerExited(
            node=self.node, ref=ref, exit=exit, at_ns=now_ns, steps=process.steps, ran_s=1.0, end=end
        )
        self.unread[ref] = event
        self.ended.add((process.order, ref))
        self.say(event)
        self._finish_stops()

    def step(self, ref: WorkerRef, steps: int, now_ns: int) -> None:
        process = self.processes[ref]
        process.steps += steps
        if not process.stepped and self.session is not None:
            process.stepped = True
            self.say(FirstStep(node=self.node, ref=ref, at_ns=now_ns))

    def lose_store(self, store: RendezvousRef) -> None:
        del self.stores[store]
        self.say(RendezvousLost(node=self.node, store=store, exit=KILLED))
