"""Starting a generation: place the ranks, get a store, start the workers.

The store of the next generation may be asked for while the old one is still being ended, so that its
start costs a recovery nothing.
"""

from __future__ import annotations

from collections import Counter

from torchloom.core.devices.assignment import choose
from torchloom.core.lifecycle import move_job, move_worker, set_workers
from torchloom.core.placement.lighthouses import site_for
from torchloom.core.placement.neighbours import choose_neighbours, memory_plan
from torchloom.core.placement.place import replicas, seat_or_wait, unit, wanted
from torchloom.core.placement.standby import drop_spare
from torchloom.core.recovery.incidents import close_findings, generation_ended
from torchloom.core.scattered import any_of
from torchloom.core.steering.driver import generation_runs
from torchloom.core.steering.operations import last_step, starting_schedule
from torchloom.core.turn import Turn
from torchloom.model.effects import Launch, StartRendezvous, StartWorkers, StopRendezvous, StopWorkers
from torchloom.model.events import RendezvousStarted, WorkersStarted
from torchloom.model.fleet import Fleet, Job, JobState, Worker, WorkerState
from torchloom.model.node import RendezvousRef
from torchloom.model.worker import WorkerRef


def start_generation(turn: Turn, job: Job, reason: str) -> None:
    """Begin the next generation, or wait with the reason why it cannot begin."""
    turn.cancel_timers(job)
    why = _being_ended(turn, job)
    nodes, why = ([], why) if why else seat_or_wait(turn, job)
    if not nodes:
        if job.state is not JobState.WAITING:
            move_job(turn, job, JobState.WAITING, why)
        job.reason = why
        return
    move_job(turn, job, JobState.STARTING, f"{reason}; {why}" if why else reason)
    close_findings(turn, job, generation_ended(turn, job, job.incident, reason), keep=job.incident)
    job.silent = {}
    job.generation += 1
    job.generation_at_ns = turn.now_ns
    job.started_at_ns = job.started_at_ns or turn.now_ns
    job.plan, job.resizing = None, 0
    for node in dict.fromkeys(nodes):
        drop_spare(turn, job, turn.fleet.nodes[node])  # it becomes a place of work
    workers = _assign(turn.fleet, job, nodes)
    choose_neighbours(turn.fleet, job, workers)
    set_workers(turn, job, workers)
    if job.rendezvous_generation == job.generation and job.rendezvous_node == nodes[0]:
        if job.rendezvous is not None:
            launch(turn, job, reason)
        return
    ask_rendezvous(turn, job, job.generation, nodes[0], reason)


def _being_ended(turn: Turn, job: Job) -> str:
    """Why no rank may start yet: older workers, which nobody reckoned with any more, still have to end."""
    for effect in turn.open_of(job.id):
        if isinstance(effect, StopWorkers) and effect.strays:
            return f"workers of an older generation are still being ended on {effect.node}"
    return ""


def ask_rendezvous(turn: Turn, job: Job, generation: int, node: str, reason: str) -> None:
    """Ask for the store of a generation; an older one that is still asked for is dropped."""
    drop_rendezvous(turn, job, "a newer store takes its place")
    job.rendezvous_generation = generation
    job.rendezvous_node = node
    elastic = job.spec.min_workers is not None or job.spec.max_workers is not None
    # Another size may be spread over several, and the replicas of a torchft job meet in the store of one.
    single = job.spec.nodes == 1 and not elastic and job.spec.replica is None
    turn.want(
        StartRendezvous(
            id=turn.next_effect_id(),
            cause=turn.seq,
            reason=reason,
            node=node,
            store=RendezvousRef(job.id, generation),
            host="127.0.0.1" if single else turn.fleet.nodes[node].inventory.address,
            interpreter=job.spec.interpreter,
            spawn=job.spec.spawn,
            preload=job.spec.preload,
            env_of=job.id,
            replica=job.spec.replica,
            lighthouse=site_for(turn, job, node),
        )
    )


def drop_rendezvous(turn: Turn, job: Job, reason: str) -> None:
    """End the newest store of the job, whether it runs already or is still to start."""
    if not job.rendezvous_generation:
        return
    ref, node = RendezvousRef(job.id, job.rendezvous_generation), job.rendezvous_node
    forget_rendezvous(turn, job)
    turn.want(StopRendezvous(id=turn.next_effect_id(), cause=turn.seq, reason=reason, node=node, store=ref))


def forget_rendezvous(turn: Turn, job: Job) -> None:
    """The newest store of the job is gone or no longer wanted, so it is not asked for any more either."""
    ref = RendezvousRef(job.id, job.rendezvous_generation)
    for effect in turn.open_of(job.id):
        if isinstance(effect, StartRendezvous) and effect.store == ref:
            turn.close(effect.id)
    if job.rendezvous is not None:
        del turn.fleet.nodes[job.rendezvous_node].stores[job.id]
    job.rendezvous = None
    job.rendezvous_generation = 0


def rendezvous_started(turn: Turn, event: RendezvousStarted) -> None:
    turn.close(event.effect)
    job = turn.fleet.jobs.get(event.store.job)
    if job is None or not holds_rendezvous(job, event.store, event.node):
        # Also when a stop is open already: it may have been carried out before this start was.
        turn.want(
            StopRendezvous(
                id=turn.next_effect_id(),
                cause=turn.seq,
                reason="this store belongs to no generation that is wanted",
                node=event.node,
                store=event.store,
            )
        )
        return
    if job.rendezvous is not None:
        return
    job.rendezvous = event.address
    turn.fleet.nodes[event.node].stores[job.id] = None
    if job.state is JobState.STARTING and job.generation == event.store.generation:
        launch(turn, job, f"the store of generation {job.generation} is up")


def holds_rendezvous(job: Job, store: RendezvousRef, node: str) -> bool:
    """Whether this very store is the one that the job uses or waits for."""
    return not job.ended and store.generation == job.rendezvous_generation and node == job.rendezvous_node


def launch(turn: Turn, job: Job, reason: str) -> None:
    """Ask each node to start its share of the ranks."""
    assert job.rendezvous is not None
    spec = job.spec
    shares = by_node(job.workers)
    for group_rank, (node, mine) in enumerate(shares.items()):
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
                launches=tuple(Launch(w.ref, w.local_rank, _chosen(w)) for w in mine),
                world_size=len(job.workers),
                local_world_size=len(mine),
                group_rank=group_rank,
                group_world_size=len(shares),
                replicas=replicas(job),
                restart_count=job.restarts,
                max_restarts=spec.restarts.max_restarts,
                store=job.rendezvous,
                pin_cores=spec.pin_cores,
                expected_steps=spec.expected_steps,
                restore_step=job.restore.step if job.restore is not None else None,
                paused=job.paused,
                fence_s=spec.policy.self_fence_s,
                schedule=starting_schedule(job),
                max_steps=last_step(job),
                log_dir=spec.log_dir,
                barred=tuple(turn.fleet.nodes[node].barred),
                replica=job.spec.replica,
                memory=memory_plan(turn.fleet, job, node, mine),
            )
        )


def _chosen(worker: Worker) -> str:
    return next((use.device for use in worker.devices if use.kind == "gpu"), "")


def by_node(workers: list[Worker]) -> dict[str, list[Worker]]:
    """Each node's share, nodes in the order of their first rank."""
    shares: dict[str, list[Worker]] = {}
    for worker in workers:
        shares.setdefault(worker.node, []).append(worker)
    return shares


def workers_started(turn: Turn, event: WorkersStarted) -> None:
    """Processes exist. They count only if they are of the incarnation that was asked for."""
    strays = []
    for started in event.workers:
        worker = find_worker(turn.fleet, started.ref, event.node)
        if worker is None or not worker.alive:
            if worker is None or worker.exit is None or worker.exit.unseen:
                strays.append(started.ref)
            continue
        process_exists(turn, worker, started.pid)
        worker.devices = started.devices or worker.devices
        worker.blind, worker.version = started.blind, started.version
    if strays:
        end_strays(turn, event.node, strays)
    effect = turn.fleet.outbox.get(event.effect)
    if isinstance(effect, StartWorkers):
        _close_if_done(turn, effect)
    for job_id in sorted({started.ref.job for started in event.workers}):
        if job_id in turn.fleet.jobs:
            settle_start(turn, turn.fleet.jobs[job_id])


def process_exists(turn: Turn, worker: Worker, pid: int) -> None:
    worker.pid = pid
    worker.started_at_ns = worker.started_at_ns or turn.now_ns
    if worker.state is WorkerState.ASSIGNED:
        move_worker(turn, worker, WorkerState.RUNNING)


def end_strays(turn: Turn, node: str, refs: list[WorkerRef]) -> None:
    """End processes that nobody wants: their generation is over, or their job is gone."""
    turn.want(
        StopWorkers(
            id=turn.next_effect_id(),
            cause=turn.seq,
            reason="these workers belong to a generation that is over",
            node=node,
            workers=tuple(refs),
            strays=True,
        )
    )


def close_done_starts(turn: Turn, job: Job) -> None:
    """A start is done when every rank of it has had a process, whatever the source: do not resend it."""
    for effect in turn.open_of(job.id):
        if isinstance(effect, StartWorkers):
            _close_if_done(turn, effect)


def _close_if_done(turn: Turn, effect: StartWorkers) -> None:
    asked = (find_worker(turn.fleet, start.ref, effect.node) for start in effect.launches)
    if not any(w is not None and w.state is WorkerState.ASSIGNED for w in asked):
        turn.close(effect.id)


def settle_start(turn: Turn, job: Job) -> None:
    """A starting job runs once every rank has had a process."""
    if job.state is not JobState.STARTING:
        return
    if any_of(job.workers, lambda worker: worker.state is WorkerState.ASSIGNED):
        return
    incident = turn.fleet.incidents.get(job.incident)
    if incident is not None:
        incident.timeline.spawned_ns = turn.now_ns
    reason = f"generation {job.generation}: all {len(job.workers)} workers run"
    if len(job.workers) != wanted(job):
        reason += f", {wanted(job)} are wanted"
    move_job(turn, job, JobState.RUNNING, reason)
    generation_runs(turn, job)


def find_worker(fleet: Fleet, ref: WorkerRef, node: str) -> Worker | None:
    """The worker of exactly this incarnation, or None: what is older, or elsewhere, has no effect."""
    job = fleet.jobs.get(ref.job)
    if job is None or not 0 <= ref.rank < len(job.workers):
        return None
    worker = job.workers[ref.rank]
    return worker if worker.ref == ref and worker.node == node else None


def retry_waiting(turn: Turn) -> None:
    """Room may have appeared: try the waiting jobs, those that have waited longest first."""
    refused: dict[tuple[int, int], str] = {}
    for job_id in list(turn.fleet.waiting):
        job = turn.fleet.jobs[job_id]
        held_up = _being_ended(turn, job)
        if held_up:
            job.reason = held_up
            continue
        shape = (job.spec.nodes, job.spec.workers_per_node)
        # What was refused to one job is refused to all of its shape, except to jobs with reserved places.
        rigid = job.spec.min_workers is None and not job.target and not job.spares
        if rigid and shape in refused:  # room only shrinks during this pass
            job.reason = refused[shape]
            continue
        start_generation(turn, job, "there is room now")
        if rigid and job.state is JobState.WAITING:
            refused[shape] = job.reason


def _assign(fleet: Fleet, job: Job, nodes: list[str]) -> list[Worker]:
    """One worker for each rank; `nodes` has the node of each."""
    workers: list[Worker] = []
    local: Counter[str] = Counter()
    devices = choose(fleet, nodes)
    for rank, node in enumerate(nodes):
        ref = WorkerRef(job.id, rank, job.generation, job.next_incarnation)
        job.next_incarnation += 1
        replica = rank // unit(job.spec) if job.spec.replicas > 1 else 0
        worker = Worker(ref=ref, node=node, local_rank=local[node], replica=replica, devices=devices[rank])
        workers.append(worker)
        local[node] += 1
    return workers
