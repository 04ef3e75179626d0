"""A job of as many ranks as one may have: it starts, loses a rank and starts again, and no event costs more
than in a job of a sixteenth of its size."""

from __future__ import annotations

import time

from msgspec.structs import replace

from torchloom.core.changes import apply_and_compare
from torchloom.core.invariants import broken
from torchloom.core.recovery.incidents import STOPPED_KEPT
from torchloom.model.effects import Effect, StartRendezvous, StartWorkers, StopWorkers
from torchloom.model.events import (
    EffectDone,
    Envelope,
    Event,
    FirstStep,
    JobSubmitted,
    NodeJoined,
    RendezvousStarted,
    StartedWorker,
    WorkerExited,
    WorkersStarted,
)
from torchloom.model.fleet import Fleet, JobState
from torchloom.model.job import MAX_WORKERS, JobSpec, Program
from torchloom.model.node import Inventory, RendezvousAddress
from torchloom.model.worker import DeviceUse, EndRecord, Exit, WorkerRef
from torchloom.wire import codec

SLOTS = 8


class WideJob:
    """One job on nodes of eight ranks, whose agents do at once what they are asked to."""

    def __init__(self, ranks: int) -> None:
        self.fleet, self.seq, self.ranks = Fleet(), 0, ranks
        self.nodes = [f"n{number:05}" for number in range(ranks // SLOTS)]

    def tell(self, event: Event) -> list[Effect]:
        self.seq += 1
        change = apply_and_compare(
            self.fleet, Envelope(f"e{self.seq}", "t", event), self.seq, self.seq * 1000
        )
        assert change is not None
        return list(change.effects)

    def join_and_submit(self) -> list[Effect]:
        for node in self.nodes:
            devices = tuple(DeviceUse(f"{node}-{n}", "gpu", "H100") for n in range(SLOTS))
            inventory = Inventory(
                hostname=node, address="10.0.0.1", boot_id=node, home=node, max_workers=SLOTS, devices=devices
            )
            self.tell(NodeJoined(node=node, session="s", inventory=inventory))
        program = Program("script", "train.py")
        spec = JobSpec(program=program, cwd="/", workers_per_node=SLOTS, nodes=len(self.nodes))
        return self.tell(JobSubmitted(job="j", spec=spec, by="t"))

    def answer(self, effects: list[Effect]) -> None:
        """Until nothing is asked for any more."""
        while effects:
            effects = [
                more for effect in effects for event in self._done(effect) for more in self.tell(event)
            ]

    def _done(self, effect: Effect) -> list[Event]:
        node = effect.node
        match effect:
            case StartRendezvous():
                address = RendezvousAddress("127.0.0.1", 29500)
                return [RendezvousStarted(node=node, effect=effect.id, store=effect.store, address=address)]
            case StartWorkers():
                refs = [launch.ref for launch in effect.launches]
                started = tuple(StartedWorker(ref, 1000 + ref.rank) for ref in refs)
                steps = [FirstStep(node=node, ref=ref, at_ns=self.seq * 1000) for ref in refs]
                return [WorkersStarted(node=node, effect=effect.id, workers=started), *steps]
            case StopWorkers():
                return [EffectDone(node=node, effect=effect.id), *map(self.exit, effect.workers)]
            case _:
                return [EffectDone(node=node, effect=effect.id)]

    def exit(self, ref: WorkerRef) -> WorkerExited:
        node = self.nodes[ref.rank // SLOTS]
        return WorkerExited(
            node=node, ref=ref, exit=Exit(None, 9, "spawner"), at_ns=self.seq * 1000, steps=100, ran_s=1000.0
        )


def story(ranks: int) -> tuple[WideJob, float]:
    """Start, loss of the last rank, second start; CPU seconds for each event."""
    job = WideJob(ranks)
    begun = time.process_time()
    job.answer(job.join_and_submit())
    assert job.fleet.jobs["j"].state is JobState.RUNNING
    effects = job.tell(job.exit(job.fleet.jobs["j"].workers[-1].ref))
    stopped = [ref for effect in effects if isinstance(effect, StopWorkers) for ref in effect.workers]
    assert len(stopped) == ranks - 1
    job.answer(effects)
    return job, (time.process_time() - begun) / job.seq


def test_a_job_of_the_largest_size_starts_and_recovers() -> None:
    assert MAX_WORKERS >= 16_384
    wide, an_event = story(MAX_WORKERS)
    _, in_a_small_job = story(MAX_WORKERS // 16)
    found = wide.fleet.jobs["j"]
    assert (found.state, found.generation, found.restarts) == (JobState.RUNNING, 2, 1)
    assert found.control.step, "every rank has stepped"
    assert broken(wide.fleet) == []
    (incident,) = wide.fleet.incidents.values()
    assert incident.culprit == MAX_WORKERS - 1 and not incident.open
    assert (
        len(incident.exits) + incident.more_exits == MAX_WORKERS and len(incident.exits) == 1 + STOPPED_KEPT
    )
    assert an_event < 4 * in_a_small_job, "what an event costs does not grow with the job"
    snapshot = codec.encode(wide.fleet)
    assert codec.encode(codec.decode_fleet(snapshot)) == snapshot
    assert len(snapshot) < 600 * MAX_WORKERS


def test_thousands_that_fail_alike_are_all_named_and_keep_little_text() -> None:
    """An import that fails in every rank must not fill every snapshot with tracebacks."""
    job = WideJob(1024)
    job.answer(job.join_and_submit())
    for worker in list(job.fleet.jobs["j"].workers):
        end = EndRecord(
            "exception",
            1,
            "ImportError",
            "no module named x",
            'File "train.py", line 3, in f\n' * 200,
            at_ns=job.seq,
        )
        died = replace(
            job.exit(worker.ref), exit=Exit(1, None, "spawner"), end=end, log_tail=("x" * 100,) * 20
        )
        job.tell(died)
    (incident,) = job.fleet.incidents.values()
    assert len(incident.exits) == 1024
    assert "failed alike" in incident.verdict
    assert len(codec.encode(incident)) < 2_000 * 1024
