"""How a generation comes to its end: normal exits, failures and their recovery, requested stops."""

from __future__ import annotations

from torchloom.core.budget import made_progress, plan_restart
from torchloom.core.culprit import blame, fault_ns, secondary_note, verdict
from torchloom.core.generation import ask_store, drop_store, find_worker, settle_start, start_generation
from torchloom.core.lifecycle import move_job, move_worker
from torchloom.core.turn import Turn
from torchloom.model.effects import StartWorkers, StopWorkers
from torchloom.model.events import WorkerExited
from torchloom.model.fleet import ExitReport, Incident, Job, JobState, Plan, Timeline, Worker, WorkerState
from torchloom.model.worker import EndRecord, Exit, WorkerRef

GRACE_IN_RECOVERY_S = 3.0
"""A survivor outside of collectives may be writing a file: it gets SIGTERM and this long."""


def worker_exited(turn: Turn, event: WorkerExited) -> None:
    worker = find_worker(turn.fleet, event.ref)
    if worker is None or not worker.alive:
        return
    job = turn.fleet.jobs[event.ref.job]
    asked_to_stop = worker.state is WorkerState.STOPPING
    move_worker(worker, WorkerState.EXITED)
    worker.exit, worker.exited_at_ns, worker.steps = event.exit, event.at_ns, event.steps
    report = ExitReport(
        rank=worker.ref.rank,
        node=worker.node,
        exit=event.exit,
        at_ns=event.at_ns,
        steps=event.steps,
        training_step=event.training_step,
        ran_s=event.ran_s,
        end=event.end,
        activity=event.activity,
        log_tail=event.log_tail,
        devices=worker.devices,
        after_stop=asked_to_stop and not _died_before_stop(turn, job, event),
    )
    match job.state:
        case JobState.STARTING | JobState.RUNNING:
            if event.exit.ok:
                _one_finished(turn, job)
            else:
                begin_recovery(turn, job, report)
        case JobState.RECOVERING:
            _add_exit(turn, job, report)
        case JobState.STOPPING:
            pass
        case _:  # a worker outlives its job only by mistake; its exit changes nothing any more
            return
    settle(turn, job)


def _died_before_stop(turn: Turn, job: Job, event: WorkerExited) -> bool:
    """The exit and our stop crossed: it had died by itself before the decision to stop it was made."""
    incident = turn.fleet.incidents.get(job.incident)
    if incident is None:
        return False
    if event.end is not None and event.end.exception and event.end.how == "exception":
        return True
    return event.at_ns < incident.timeline.decided_ns and not event.exit.ok


def _one_finished(turn: Turn, job: Job) -> None:
    if job.state is JobState.STARTING:
        settle_start(turn, job)
    if not any(w.alive for w in job.workers):
        end_job(turn, job, JobState.COMPLETED, f"all {len(job.workers)} workers exited with code 0")


def begin_recovery(turn: Turn, job: Job, report: ExitReport) -> None:
    """A worker failed: open an incident, decide once, end the rest of the generation."""
    progress = made_progress(job.spec.restarts, report.steps, report.ran_s)
    job.plan = plan_restart(job, report.rank, progress, turn.chance)
    job.fruitless = 0 if progress else job.fruitless + 1
    incident = Incident(
        id=f"{job.id}.{len(job.incidents) + 1}",
        job=job.id,
        generation=job.generation,
        kind="start-failed" if report.end and report.end.how == "start-failed" else "crash",
        verdict="",
        timeline=Timeline(fault_ns=report.at_ns, detected_ns=report.at_ns, decided_ns=turn.now_ns),
    )
    turn.fleet.incidents[incident.id] = incident
    job.incidents.append(incident.id)
    previous = turn.fleet.incidents.get(job.incident)
    if previous is not None:
        previous.open = False
        job.down_ns += max(0, report.at_ns - previous.timeline.fault_ns)
    job.incident = incident.id
    _add_exit(turn, job, report)
    incident.decision = job.plan.reason
    move_job(job, JobState.RECOVERING, f"{incident.verdict}; {job.plan.reason}", turn.now_ns)
    stop_workers(
        turn,
        [w for w in job.workers if w.alive],
        reason=f"rank {report.rank} is gone, so its generation {job.generation} cannot go on",
        grace_s=GRACE_IN_RECOVERY_S,
        kill_in_collective=True,
    )
    if job.plan.restart and job.plan.delay_s == 0:
        ask_store(
            turn, job, job.generation + 1, job.workers[0].node, "the next generation needs a fresh store"
        )
    else:
        drop_store(turn, job, "its generation is over")


def start_failed(turn: Turn, job: Job, refs: set[WorkerRef], why: str) -> None:
    """Workers that were asked for do not exist: the same budget applies as to a crash."""
    failed = [w for w in job.workers if w.ref in refs and w.state is WorkerState.ASSIGNED]
    for worker in failed:
        move_worker(worker, WorkerState.EXITED)
        worker.exit, worker.exited_at_ns = Exit(None, None, "unknown"), turn.now_ns
        report = ExitReport(
            rank=worker.ref.rank,
            node=worker.node,
            exit=worker.exit,
            at_ns=turn.now_ns,
            steps=0,
            end=EndRecord(how="start-failed", message=why),
        )
        if job.state is JobState.STARTING:
            begin_recovery(turn, job, report)
        elif job.state is JobState.RECOVERING:
            _add_exit(turn, job, report)
    settle(turn, job)


def _add_exit(turn: Turn, job: Job, report: ExitReport) -> None:
    incident = turn.fleet.incidents[job.incident]
    culprit, incident.exits = blame([*incident.exits, report])
    incident.culprit = culprit
    incident.timeline.fault_ns = fault_ns([r for r in incident.exits if not r.after_stop])
    for r in incident.exits:
        if r.rank == culprit:
            incident.verdict = verdict(r) + secondary_note(incident.exits)


def settle(turn: Turn, job: Job) -> None:
    """If nothing of the generation is alive any more, do what was planned."""
    if any(w.alive for w in job.workers):
        return
    if job.state is JobState.STOPPING:
        end_job(turn, job, JobState.STOPPED, job.reason)
    elif job.state is JobState.RECOVERING:
        assert job.plan is not None
        incident = turn.fleet.incidents[job.incident]
        incident.timeline.stopped_ns = turn.now_ns
        _follow_plan(turn, job, job.plan, incident)


def _follow_plan(turn: Turn, job: Job, plan: Plan, incident: Incident) -> None:
    if not plan.restart:
        incident.open = False
        end_job(turn, job, JobState.FAILED, f"{incident.verdict}; not restarted: {plan.reason}")
        return
    job.restarts += 1
    if incident.culprit is not None:
        job.restarts_by_rank[incident.culprit] = job.restarts_by_rank.get(incident.culprit, 0) + 1
    if plan.delay_s > 0:
        move_job(job, JobState.BACKOFF, f"{incident.verdict}; {plan.reason}", turn.now_ns)
        turn.set_timer(f"backoff/{job.id}/{job.generation}", job.id, plan.delay_s)
    else:
        start_generation(turn, job, plan.reason)


def stop_workers(
    turn: Turn,
    workers: list[Worker],
    *,
    reason: str,
    grace_s: float,
    kill_in_collective: bool = False,
    at_step: int | None = None,
    boundary_wait_s: float = 0.0,
) -> None:
    """Ask each node to end its share of these workers.

    Only an agent's report makes a worker EXITED, also for one whose start is still under way: the start
    is withdrawn, and the agent answers for an incarnation it does not know that there is none.
    """
    _withdraw_starts(turn, {w.ref for w in workers})
    for node in sorted({w.node for w in workers}):
        mine = [w for w in workers if w.node == node]
        for worker in mine:
            if worker.state is not WorkerState.STOPPING:
                move_worker(worker, WorkerState.STOPPING)
        turn.want(
            StopWorkers(
                id=turn.next_effect_id(),
                cause=turn.seq,
                reason=reason,
                node=node,
                workers=tuple(w.ref for w in mine),
                at_step=at_step,
                boundary_wait_s=boundary_wait_s,
                grace_s=grace_s,
                kill_in_collective=kill_in_collective,
            )
        )


def _withdraw_starts(turn: Turn, refs: set[WorkerRef]) -> None:
    for effect in list(turn.fleet.outbox.values()):
        if isinstance(effect, StartWorkers) and any(start.ref in refs for start in effect.launches):
            turn.close(effect.id)


def end_job(turn: Turn, job: Job, state: JobState, reason: str) -> None:
    """The last thing that happens to a job: nothing of it may stay behind."""
    move_job(job, state, reason, turn.now_ns)
    turn.cancel_timers(job.id)
    drop_store(turn, job, "its job has ended")
    incident = turn.fleet.incidents.get(job.incident)
    if incident is not None:
        incident.open = False
    job.plan = None
