"""How many events a weaver's core takes: decode → apply → effects, replay, snapshots, memory per worker.

A simulated fleet is started, crashes, reconnects and ends, and its agents answer every effect at once; the
stream this makes is then replayed into an empty fleet and timed. All times are CPU time of one thread, so a
busy machine does not disturb them. The peer in the same run is msgspec decoding the same bytes into the same
records and doing nothing with them: no weaver in Python can be faster than that. Run it with

    python bench/weaver.py [--workers 1000,10000] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass

from torchloom.core.invariants import broken
from torchloom.core.reducer import apply
from torchloom.model.effects import Effect, StartRendezvous, StartWorkers, StopRendezvous, StopWorkers
from torchloom.model.events import (
    Decided,
    EffectDone,
    Envelope,
    Event,
    FirstStep,
    JobSubmitted,
    LeaseTaken,
    NodeJoined,
    RendezvousStarted,
    StartedWorker,
    StopRequested,
    TimerFired,
    WorkerExited,
    WorkerProgress,
    WorkerRegistered,
    WorkersStarted,
)
from torchloom.model.fleet import Fleet
from torchloom.model.job import JobSpec, Program, RestartLimits
from torchloom.model.messages import Command
from torchloom.model.node import Inventory, LiveWorker, RendezvousAddress, RendezvousRef
from torchloom.model.worker import DeviceUse, EndRecord, Exit, WorkerRef
from torchloom.wire import codec

SLOTS = 8
LOG_TAIL = tuple(f"step {n}: loss 2.{n} lr 0.0003 tokens/s 123456" for n in range(20))
Record = tuple[bytes, int, int]


class Simulation:
    """Agents that answer at once. Keeps the encoded stream."""

    def __init__(self, workers: int) -> None:
        self.fleet = Fleet()
        self.stream: list[Record] = []
        self.workers = workers
        self.chance = random.Random(1)
        self.now_ns = 1_700_000_000_000_000_000
        self.stores: dict[str, dict[RendezvousRef, None]] = defaultdict(dict)

    def tell(self, event: Event) -> None:
        """Append an event, the decision it leads to, and all answers of the agents, until nothing is open."""
        todo = [event]
        while todo:
            following: list[Event] = []
            for body in todo:
                effects = self._append(body)
                if effects:
                    self._append(Decided(epoch=1, effects=tuple(effects)))
                for effect in effects:
                    following += self._answer(effect)
            todo = following

    def _append(self, event: Event) -> list[Effect]:
        self.now_ns += 1_000_000
        seq = len(self.stream) + 1
        envelope = Envelope(f"{seq:032x}", "agent/node-0001", event)
        self.stream.append((codec.encode(envelope), seq, self.now_ns))
        return apply(self.fleet, envelope, seq, self.now_ns)

    def _answer(self, effect: Effect) -> list[Event]:
        if effect.id not in self.fleet.outbox:
            return []
        node = effect.node
        match effect:
            case StartRendezvous():
                self.stores[node][effect.store] = None
                address = RendezvousAddress("127.0.0.1", 29500)
                return [RendezvousStarted(node=node, effect=effect.id, store=effect.store, address=address)]
            case StopRendezvous():
                self.stores[node].pop(effect.store, None)
                return [EffectDone(node=node, effect=effect.id)]
            case StartWorkers():
                refs = [start.ref for start in effect.launches]
                started = tuple(StartedWorker(ref, 4000 + ref.rank, _device(node, ref)) for ref in refs)
                return [
                    WorkersStarted(node=node, effect=effect.id, workers=started),
                    *(WorkerRegistered(node=node, ref=ref, devices=_device(node, ref)) for ref in refs),
                    *(FirstStep(node=node, ref=ref, at_ns=self.now_ns, training_step=10) for ref in refs),
                ]
            case StopWorkers():
                ended = Exit(None, 9, "spawner")
                exits = [self.exited(node, ref, ended) for ref in effect.workers]
                return [*exits, EffectDone(node=node, effect=effect.id)]

    def exited(self, node: str, ref: WorkerRef, exit: Exit, end: EndRecord | None = None) -> WorkerExited:
        return WorkerExited(
            node=node,
            ref=ref,
            exit=exit,
            at_ns=self.now_ns,
            steps=500,
            training_step=510,
            ran_s=80.0,
            end=end,
            activity="in all_reduce #412 of group default (4.0 MB float32) for 0.2 s",
            log_tail=LOG_TAIL,
        )

    # -- the life of a fleet ----------------------------------------------------------------------
    def live(self) -> None:
        """A lease, all nodes, one large job and many of 8, crashes, a bus restart, and a third ends."""
        self.tell(LeaseTaken(weaver="weaver-1", epoch=1))
        nodes = [f"node-{n:04}" for n in range(self.workers // SLOTS)]
        for node in nodes:
            self.join(node)
        large = len(nodes) // 10
        self.submit("large", large)
        for n in range(len(nodes) - large):
            self.submit(f"small-{n:04}", 1)
        assert sum(job.living for job in self.fleet.jobs.values()) == len(nodes) * SLOTS
        self.crash("large")
        small = [job for job in self.fleet.jobs if job != "large"]
        for job in self.chance.sample(small, len(small) // 2):
            self.crash(job)
        for node in nodes:
            self.join(node)
        for job in self.chance.sample(small, len(small) // 3):
            self.end(job)
        assert not self.fleet.outbox and not broken(self.fleet)

    def join(self, node: str) -> None:
        jobs = self.fleet.nodes[node].jobs if node in self.fleet.nodes else {}
        mine = [w for job in jobs for w in self.fleet.jobs[job].workers if w.node == node]
        inventory = Inventory(
            hostname=node,
            address="10.0.0.1",
            boot_id="boot",
            max_workers=SLOTS,
            workers=tuple(LiveWorker(w.ref, w.pid, w.devices) for w in mine),
            stores=tuple(self.stores[node]),
        )
        self.tell(NodeJoined(node=node, session="s", inventory=inventory))

    def submit(self, job: str, nodes: int) -> None:
        spec = JobSpec(
            program=Program("script", "train.py", ("--config", "large.yaml")),
            cwd="/home/user/project",
            workers_per_node=SLOTS,
            nodes=nodes,
            restarts=RestartLimits(jitter=0.0),
        )
        self.tell(JobSubmitted(job=job, spec=spec, by="user"))

    def crash(self, job: str) -> None:
        """One rank is killed, a few peers tell of it, the rest is stopped and all start again."""
        workers = self.fleet.jobs[job].workers
        lost = EndRecord("exception", 1, "RuntimeError", "Connection closed by peer", connection_lost=True)
        first, *peers = self.chance.sample(workers, 3)
        self.tell(self.exited(first.node, first.ref, Exit(None, 9, "spawner")))
        for peer in peers:
            self.tell(self.exited(peer.node, peer.ref, Exit(1, None, "spawner"), lost))
        for timer in list(self.fleet.timers):
            self.tell(TimerFired(timer=timer))

    def end(self, job: str) -> None:
        workers = self.fleet.jobs[job].workers
        if self.chance.random() < 0.5:
            progress = tuple(WorkerProgress(w.ref.rank, 500, 0.2) for w in workers)
            self.tell(StopRequested(job=job, by="user", progress=progress))
            return
        for worker in workers:
            self.tell(self.exited(worker.node, worker.ref, Exit(0, None, "spawner")))


def _device(node: str, ref: WorkerRef) -> tuple[DeviceUse, ...]:
    return (DeviceUse(f"cpu-{node}-{ref.rank % SLOTS}", "cpu", "core"),)


@dataclass
class Result:
    """One size of fleet. Times are CPU times; per second means per second of one core."""

    workers: int
    jobs: int
    events: int
    mean_event_bytes: float
    decode_events_s: float
    """The limit: decode the bytes, do nothing."""
    apply_events_s: float
    """decode → apply → effects encoded as commands."""
    replay_events_s: float
    """decode → apply, as a weaver that starts without a snapshot."""
    ratio_to_decode: float
    replay_s: float
    slowest_event: str
    slowest_event_us: float
    worst_single_ms: float
    snapshot_bytes_per_worker: float
    snapshot_encode_ms: float
    snapshot_decode_ms: float
    memory_bytes_per_worker: float


def cpu_s(work: Callable[[], object], rounds: int) -> float:
    """The best of several rounds, because whatever disturbs only ever adds."""
    best = float("inf")
    for _ in range(rounds):
        gc.collect()
        gc.disable()
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
        gc.enable()
    return best


def replay(stream: list[Record]) -> Fleet:
    fleet = Fleet()
    for data, seq, now_ns in stream:
        apply(fleet, codec.decode_envelope(data), seq, now_ns)
    return fleet


def perform(stream: list[Record]) -> None:
    fleet = Fleet()
    for data, seq, now_ns in stream:
        for effect in apply(fleet, codec.decode_envelope(data), seq, now_ns):
            codec.encode(Command(1, effect))


def by_kind(stream: list[Record]) -> tuple[dict[str, float], float]:
    """Mean µs per kind of event, decoding not counted, and the longest single event in ms."""
    fleet = Fleet()
    gc.disable()
    spent: dict[str, list[int]] = defaultdict(list)
    for data, seq, now_ns in stream:
        envelope = codec.decode_envelope(data)
        begun = time.process_time_ns()
        apply(fleet, envelope, seq, now_ns)
        spent[type(envelope.body).__name__].append(time.process_time_ns() - begun)
    gc.enable()
    worst = max(max(times) for times in spent.values())
    return {kind: sum(times) / len(times) / 1e3 for kind, times in spent.items()}, worst / 1e6


def memory(snapshot: bytes) -> int:
    gc.collect()
    tracemalloc.start()
    fleet = codec.decode_fleet(snapshot)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del fleet
    return size


def measure(workers: int, rounds: int) -> tuple[Result, dict[str, float]]:
    simulation = Simulation(workers)
    simulation.live()
    stream = simulation.stream
    decode = codec.decode_envelope
    decoding_s = cpu_s(lambda: [decode(data) for data, _, _ in stream] and None, rounds)
    replaying_s = cpu_s(lambda: replay(stream), rounds)
    performing_s = cpu_s(lambda: perform(stream), rounds)
    kinds, worst_ms = by_kind(stream)
    slowest = max(kinds, key=lambda kind: kinds[kind])
    fleet = replay(stream)
    snapshot = codec.encode(fleet)
    assert snapshot == codec.encode(simulation.fleet), "replay gives another fleet"
    result = Result(
        workers=workers,
        jobs=len(fleet.jobs),
        events=len(stream),
        mean_event_bytes=sum(len(data) for data, _, _ in stream) / len(stream),
        decode_events_s=len(stream) / decoding_s,
        apply_events_s=len(stream) / performing_s,
        replay_events_s=len(stream) / replaying_s,
        ratio_to_decode=performing_s / decoding_s,
        replay_s=replaying_s,
        slowest_event=slowest,
        slowest_event_us=kinds[slowest],
        worst_single_ms=worst_ms,
        snapshot_bytes_per_worker=len(snapshot) / workers,
        snapshot_encode_ms=cpu_s(lambda: codec.encode(fleet), rounds) * 1e3,
        snapshot_decode_ms=cpu_s(lambda: codec.decode_fleet(snapshot), rounds) * 1e3,
        memory_bytes_per_worker=memory(snapshot) / workers,
    )
    return result, kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", default="1000,10000", help="sizes of the fleet, comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args()
    measured = [measure(int(size), options.rounds) for size in options.workers.split(",")]
    if options.json:
        print(json.dumps([{**asdict(result), "us_by_event": kinds} for result, kinds in measured]))
        return
    for label in asdict(measured[0][0]):
        values = [asdict(result)[label] for result, _ in measured]
        shown = [
            v if isinstance(v, str) else f"{v:,.1f}" if isinstance(v, float) else f"{v:,}" for v in values
        ]
        print(f"{label.replace('_', ' '):28}" + "".join(f"{text:>18}" for text in shown))
    print("\nmean µs in apply, by event")
    for kind in sorted(measured[-1][1], key=lambda kind: -measured[-1][1][kind]):
        print(f"  {kind:26}" + "".join(f"{kinds[kind]:>18,.1f}" for _, kinds in measured))


if __name__ == "__main__":
    main()
