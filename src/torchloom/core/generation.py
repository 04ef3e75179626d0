"""Starting a generation: place the ranks, get a store, start the workers.

The store of the next generation may be asked for while the old one is still being ended, so that its
start costs a recovery nothing.
"""

from __future__ import annotations

from torchloom.core.lifecycle import move_job, move_worker
from torchloom.core.place import place
from torchloom.core.turn import Turn
from torchloom.model.effects import Launch, StartStore, StartWorkers, StopStore
from torchloom.model.events import StoreStarted, WorkersStarted
from torchloom.model.fleet import Fleet, Job, JobState, NodeState, Worker, WorkerState
from torchloom.model.node import StoreRef
from torchloom.model.worker import WorkerRef


def start_generation(turn: Turn, job: Job, reason: str) -> None:
    """Begin the next generation, or wait with the reason why it cannot begin."""
    nodes, why_not = place(turn.fleet, job)
    if not nodes:
        if job.state is not JobState.WAITING:
            move_job(job, JobState.WAITING, why_not, turn.now_ns)
        job.reason = why_not
        return
    move_job(job, JobState.STARTING, reason, turn.now_ns)
    job.generation += 1
    job.generation_at_ns = turn.now_ns
    job.started_at_ns = job.started_at_ns or turn.now_ns
    job.plan = None
    job.workers = _assign(job, nodes)
    if job.store_generation == job.generation and job.store_node == nodes[0]:
        if job.store is not None:
            launch(turn, job, reason)
        return
    ask_store(turn, job, job.generation, nodes[0], reason)


def ask_store(turn: Turn, job: Job, generation: int, node: str, reason: str) -> None:
    """Ask for the store of a generation; an older one that is still asked for is dropped."""
    drop_store(turn, job, "a newer store takes its place")
    job.store = None
    job.store_generation = generation
    job.store_node = node
    single = job.spec.nodes == 1
    turn.want(
        StartStore(
            id=turn.next_effect_id(),
            cause=turn.seq,
            reason=reason,
            node=node,
            store=StoreRef(job.id, generation),
            host="127.0.0.1" if single else turn.fleet.nodes[node].inventory.address,
            interpreter=job.spec.interpreter,
            spawn=job.spec.spawn,
            preload=job.spec.preload,
            env_of=job.id,
        )
    )


def drop_store(turn: Turn, job: Job, reason: str) -> None:
    """End the newest store of the job, whether it runs already or is still to start."""
    if not job.store_generation:
        return
    ref = StoreRef(job.id, job.store_generation)
    for effect in list(turn.fleet.outbox.values()):
        if isinstance(effect, StartStore) and effect.store == ref:
            turn.close(effect.id)
    turn.want(
        StopStore(id=turn.next_effect_id(), cause=turn.seq, reason=reason, node=job.store_node, store=ref)
    )
    job.store = None
    job.store_generation = 0


def store_started(turn: Turn, event: StoreStarted) -> None:
    turn.close(event.effect)
    job = turn.fleet.jobs.get(event.store.job)
    if job is None or job.ended or event.store.generation != job.store_generation:
        if not _stop_asked(turn.fleet, event.store):
            turn.want(
                StopStore(
                    id=turn.next_effect_id(),
                    cause=turn.seq,
                    reason="this store belongs to no generation that is wanted",
                    node=event.node,
                    store=event.store,
                )
            )
        return
    if job.store is not None:
        return
    job.store = event.address
    if job.state is JobState.STARTING and job.generation == event.store.generation:
        launch(turn, job, f"the store of generation {job.generation} is up")


def _stop_asked(fleet: Fleet, store: StoreRef) -> bool:
    return any(isinstance(e, StopStore) and e.store == store for e in fleet.outbox.values())


def launch(turn: Turn, job: Job, reason: str) -> None:
    """Tell each node to start its share of the ranks."""
    assert job.store is not None
    spec = job.spec
    nodes = list(dict.fromkeys(w.node for w in job.workers))
    for group_rank, node in enumerate(nodes):
        mine = [w for w in job.workers if w.node == node]
        turn.want(
            StartWorkers(
                id=turn.next_effect_id(),
                cause=turn.seq,
                reason=reason,
                node=node,
                job=job.id,
                generation=job.generation,
                program=spec.program,
                cwd=spec.cwd,
                interpreter=spec.interpreter,
                spawn=spec.spawn,
                preload=spec.preload,
                launches=tuple(Launch(w.ref, w.local_rank) for w in mine),
                world_size=spec.world_size,
                local_world_size=len(mine),
                group_rank=group_rank,
                group_world_size=len(nodes),
                replicas=spec.replicas,
                restart_count=job.restarts,
                max_restarts=spec.restarts.max_restarts,
                store=job.store,
                pin_cores=spec.pin_cores,
                expected_steps=spec.expected_steps,
            )
        )


def workers_started(turn: Turn, event: WorkersStarted) -> None:
    """Processes exist. They count only if they are of the incarnation that was asked for."""
    turn.close(event.effect)
    for started in event.workers:
        worker = find_worker(turn.fleet, started.ref)
        if worker is None or not worker.alive:
            continue
        worker.pid = started.pid
        worker.devices = started.devices or worker.devices
        worker.blind = started.blind
        worker.started_at_ns = worker.started_at_ns or turn.now_ns
        if worker.state is WorkerState.ASSIGNED:
            move_worker(worker, WorkerState.RUNNING)
    for job_id in {s.ref.job for s in event.workers}:
        job = turn.fleet.jobs.get(job_id)
        if job is not None and job.state is JobState.STARTING:
            settle_start(turn, job)


def settle_start(turn: Turn, job: Job) -> None:
    """A starting job runs once every rank has had a process."""
    if any(w.state is WorkerState.ASSIGNED for w in job.workers):
        return
    incident = turn.fleet.incidents.get(job.incident)
    if incident is not None:
        incident.timeline.spawned_ns = turn.now_ns
    move_job(
        job, JobState.RUNNING, f"generation {job.generation}: all {len(job.workers)} workers run", turn.now_ns
    )


def find_worker(fleet: Fleet, ref: WorkerRef) -> Worker | None:
    """The worker of exactly this incarnation, or None: what is older has no effect."""
    job = fleet.jobs.get(ref.job)
    if job is None or not 0 <= ref.rank < len(job.workers):
        return None
    worker = job.workers[ref.rank]
    return worker if worker.ref == ref else None


def retry_waiting(turn: Turn) -> None:
    """Room may have appeared: try the waiting jobs, oldest first."""
    if not any(n.state is NodeState.READY for n in turn.fleet.nodes.values()):
        return
    for job in list(turn.fleet.jobs.values()):
        if job.state is JobState.WAITING:
            start_generation(turn, job, "there is room now")


def _assign(job: Job, nodes: list[str]) -> list[Worker]:
    spec = job.spec
    workers = []
    for rank in range(spec.world_size):
        group_rank, local_rank = divmod(rank, spec.workers_per_node)
        ref = WorkerRef(job.id, rank, job.generation, job.next_incarnation)
        job.next_incarnation += 1
        workers.append(
            Worker(
                ref=ref,
                node=nodes[group_rank],
                local_rank=local_rank,
                replica=rank * spec.replicas // spec.world_size,
            )
        )
    return workers
