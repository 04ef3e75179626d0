"""Tells a story to the core, event by event, as a stream would; every step is checked against the invariants.

For the unit tests of the core: short verbs for what people, agents and workers do. It chooses nothing.
"""

from __future__ import annotations

from typing import TypeVar

from told_changes import apply_and_check

from torchloom.core.invariants import broken
from torchloom.core.reducer import apply
from torchloom.model.effects import (
    Effect,
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
    JobSubmitted,
    NodeJoined,
    RendezvousLost,
    RendezvousStarted,
    StartedWorker,
    StopRequested,
    TimerFired,
    WorkerExited,
    WorkerProgress,
    WorkersStarted,
)
from torchloom.model.fleet import Fleet, Job, JobState
from torchloom.model.incidents import Incident
from torchloom.model.job import JobSpec, Program, RestartLimits
from torchloom.model.node import Inventory, LiveWorker, RendezvousAddress, RendezvousRef
from torchloom.model.worker import EndRecord, Exit, WorkerRef
from torchloom.wire import codec

S = 1_000_000_000
MS = 1_000_000
START_NS = 1_700_000_000 * S
KILLED = Exit(None, 9, "spawner")
FAILED = Exit(1, None, "spawner")
OK = Exit(0, None, "spawner")
NEVER_STARTED = Exit(None, None, "inventory")

E = TypeVar("E", StartRendezvous, StopRendezvous, StartWorkers, StopWorkers, RemoveJobFiles, WarmSpawner)


def only(kind: type[E], effects: list[Effect]) -> E:
    """The single effect of a kind among the effects."""
    found = [e for e in effects if isinstance(e, kind)]
    assert len(found) == 1, f"{len(found)} {kind.__name__} in {effects}"
    return found[0]


def kinds(effects: list[Effect]) -> list[str]:
    return [type(e).__name__ for e in effects]


def spec(workers: int = 2, nodes: int = 1, **more: object) -> JobSpec:
    program = Program("script", "train.py")
    return JobSpec(program=program, cwd="/here", workers_per_node=workers, nodes=nodes, **more)  # type: ignore[arg-type]


class Story:
    """One stream and the fleet it makes."""

    def __init__(self, **nodes: int) -> None:
        """`nodes`: how many workers each node may hold."""
        self.fleet = Fleet()
        self.stream: list[tuple[bytes, int, int]] = []
        self.effects: list[Effect] = []
        self.now_ns = START_NS
        self.ahead_s: dict[str, float] = {}
        """By how much the clocks of some nodes are wrong; times they tell are by those."""
        for node, slots in nodes.items():
            self.join(node, slots)

    # -- the stream -----------------------------------------------------------------------------
    def tell(self, event: Event, event_id: str = "", after_s: float = 0.01) -> list[Effect]:
        self.now_ns += int(after_s * S)
        seq = len(self.stream) + 1
        ahead_s = self.ahead_s.get(getattr(event, "node", ""))
        sent_ns = 0 if ahead_s is None else self.now_ns + int(ahead_s * S) - MS
        data = codec.encode(Envelope(event_id or f"event-{seq}", "story", event, sent_ns))
        self.stream.append((data, seq, self.now_ns))
        effects = apply(self.fleet, codec.decode_envelope(data), seq, self.now_ns)
        assert broken(self.fleet) == []
        assert all(e.reason and e.cause == seq and e.id in self.fleet.outbox for e in effects)
        self.effects += effects
        return effects

    def check_replay(self) -> None:
        """From the beginning and from a snapshot at any point: the same fleet and the same effects."""
        fleet, effects = Fleet(), []
        snapshots = []
        for data, seq, now_ns in self.stream:
            snapshots.append(codec.encode(fleet))
            effects += apply(fleet, codec.decode_envelope(data), seq, now_ns)
        assert effects == self.effects
        assert codec.encode(fleet) == codec.encode(self.fleet)
        told = Fleet()
        for data, seq, now_ns in self.stream:
            apply_and_check(told, codec.decode_envelope(data), seq, now_ns)
        for cut, snapshot in enumerate(snapshots):
            late = codec.decode_fleet(snapshot)
            for data, seq, now_ns in self.stream[cut:]:
                apply(late, codec.decode_envelope(data), seq, now_ns)
            assert codec.encode(late) == codec.encode(self.fleet), f"from a snapshot after {cut} events"

    # -- what is ---------------------------------------------------------------------------------
    def job(self, job: str = "j") -> Job:
        return self.fleet.jobs[job]

    def state(self, job: str = "j") -> JobState:
        return self.fleet.jobs[job].state

    def ref(self, rank: int = 0, job: str = "j") -> WorkerRef:
        return self.fleet.jobs[job].workers[rank].ref

    def incident(self, job: str = "j", index: int = -1) -> Incident:
        return self.fleet.incidents[self.fleet.jobs[job].incidents[index]]

    def open(self, kind: type[E]) -> list[E]:
        return [e for e in self.fleet.outbox.values() if isinstance(e, kind)]

    # -- what happens ----------------------------------------------------------------------------
    def join(
        self,
        node: str = "a",
        slots: int = 8,
        *,
        boot: str = "boot-1",
        live: tuple[WorkerRef, ...] = (),
        exits: tuple[WorkerRef, ...] = (),
        stores: tuple[RendezvousRef, ...] = (),
        session: str = "s1",
    ) -> list[Effect]:
        inventory = Inventory(
            hostname=node,
            address=f"{node}.example",
            boot_id=boot,
            max_workers=slots,
            workers=tuple(LiveWorker(ref, 4000 + ref.rank) for ref in live),
            exits_to_come=exits,
            stores=stores,
            agents_port=7000,
        )
        return self.tell(NodeJoined(node=node, session=session, inventory=inventory))

    def submit(self, job: str = "j", workers: int = 2, nodes: int = 1, **more: object) -> list[Effect]:
        return self.tell(JobSubmitted(job=job, spec=spec(workers, nodes, **more), by="ann"))

    def store_up(self, effect: StartRendezvous | None = None, port: int = 29500) -> list[Effect]:
        effect = effect or self.open(StartRendezvous)[-1]
        address = RendezvousAddress(effect.host, port)
        return self.tell(
            RendezvousStarted(node=effect.node, effect=effect.id, store=effect.store, address=address)
        )

    def store_lost(self, job: str = "j") -> list[Effect]:
        known = self.job(job)
        ref = RendezvousRef(job, known.rendezvous_generation)
        return self.tell(RendezvousLost(node=known.rendezvous_node, store=ref, exit=KILLED))

    def started(self, effect: StartWorkers | None = None) -> list[Effect]:
        effects: list[Effect] = []
        for start in [effect] if effect else self.open(StartWorkers):
            workers = tuple(StartedWorker(x.ref, 4000 + x.ref.rank) for x in start.launches)
            effects += self.tell(WorkersStarted(node=start.node, effect=start.id, workers=workers))
        return effects

    def run(self, job: str = "j", workers: int = 2, nodes: int = 1, **more: object) -> Job:
        """Submit a job and bring it to RUNNING."""
        self.submit(job, workers, nodes, **more)
        self.bring_up()
        assert self.state(job) is JobState.RUNNING, self.job(job).reason
        return self.job(job)

    def bring_up(self) -> None:
        """Whatever store and workers are asked for come up."""
        for effect in self.open(StartRendezvous):
            self.store_up(effect)
        self.started()

    def exit(
        self,
        rank: int = 0,
        exit: Exit = KILLED,
        job: str = "j",
        *,
        ref: WorkerRef | None = None,
        at_s: float = 0.0,
        end: EndRecord | None = None,
        steps: int = 0,
        **more: object,
    ) -> list[Effect]:
        """A worker's exit is reported; `at_s` is how long before now its process was gone."""
        ref = ref or self.ref(rank, job)
        worker = self.fleet.jobs[job].workers[ref.rank] if job in self.fleet.jobs else None
        return self.tell(
            WorkerExited(
                node=worker.node if worker else "a",
                ref=ref,
                exit=exit,
                at_ns=self.now_ns - int(at_s * S),
                steps=steps,
                end=end,
                **more,  # type: ignore[arg-type]
            )
        )

    def end_rest(self, exit: Exit = Exit(None, 15, "spawner"), job: str = "j") -> list[Effect]:
        """Everyone who was told to stop does so."""
        effects: list[Effect] = []
        for worker in [w for w in self.job(job).workers if w.alive]:
            effects += self.exit(worker.ref.rank, exit, job)
        return effects

    def first_step(self, rank: int = 0, job: str = "j", training_step: int | None = None) -> list[Effect]:
        worker = self.job(job).workers[rank]
        return self.tell(
            FirstStep(node=worker.node, ref=worker.ref, at_ns=self.now_ns, training_step=training_step)
        )

    def stop(
        self, job: str = "j", kill: bool = False, steps: int = 0, step_s: float = 0.1, **more: object
    ) -> list[Effect]:
        """A person stops a job, all ranks of which are known to have done `steps`."""
        ranks = range(len(self.job(job).workers)) if steps else range(0)
        progress = tuple(WorkerProgress(rank, steps, step_s) for rank in ranks)
        return self.tell(StopRequested(job=job, by="bob", kill=kill, progress=progress, **more))  # type: ignore[arg-type]

    def fire(self) -> list[Effect]:
        """The next timer is due and fires."""
        timer = min(self.fleet.timers.values(), key=lambda t: t.at_ns)
        self.now_ns = max(self.now_ns, timer.at_ns)
        return self.tell(TimerFired(timer=timer.id))

    def done(self, *effects: Effect) -> list[Effect]:
        return [x for e in effects for x in self.tell(EffectDone(node=e.node, effect=e.id))]

    def failed(self, effect: Effect, why: str = "it did not work") -> list[Effect]:
        return self.tell(EffectFailed(node=effect.node, effect=effect.id, why=why))


def limits(**more: object) -> RestartLimits:
    return RestartLimits(**more)  # type: ignore[arg-type]


def lost_peer(at_ns: int = 0) -> EndRecord:
    return EndRecord(
        "exception", 1, "RuntimeError", "Connection closed by peer", connection_lost=True, at_ns=at_ns
    )


def raised(what: str = "ValueError", message: str = "no", at_ns: int = 0) -> EndRecord:
    return EndRecord("exception", 1, what, message, at_ns=at_ns)
