"""How a generation comes to its end: normal exits, failures and their recovery, requested stops."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from torchloom.core.lifecycle import move_job, move_worker
from torchloom.core.recovery import budget
from torchloom.core.recovery.culprit import (
    charge,
    complete,
    left_early,
    secondary_note,
    start_failed,
    tell_disagreement,
    verdict,
)
from torchloom.core.recovery.generation_start import (
    ask_rendezvous,
    by_node,
    close_done_starts,
    drop_rendezvous,
    find_worker,
    settle_start,
    start_generation,
)
from torchloom.core.recovery.hopeless import plan_if_it_can_succeed
from torchloom.core.recovery.incidents import (
    close_findings,
    count_lost,
    decision_of,
    drop_stopped,
    followed,
    generation_ended,
    goodput,
    open_incident,
    take_over_silence,
)
from torchloom.core.steering.driver import job_ended, rank_ended
from torchloom.core.turn import Turn
from torchloom.model.effects import ReleaseMemory, StartWorkers, StopWorkers
from torchloom.model.events import WorkerExited
from torchloom.model.fleet import Job, JobState, NodeState, RestartPlan, Worker, WorkerState
from torchloom.model.incidents import EndedBy, Ending, ExitReport, Incident, Verdict
from torchloom.model.timers import TimerKind
from torchloom.model.worker import EndRecord, Exit, LogLoss, WorkerRef

GRACE_IN_RECOVERY_S = 3.0
"""A survivor outside of collectives may be writing a file: it gets SIGTERM and this long."""
GRACE_TO_END_S = 30.0
"""A worker whose script has failed may be sending a report of it: it is left alone for this long at least."""


def worker_exited(turn: Turn, event: WorkerExited) -> None:
    worker = find_worker(turn.fleet, event.ref, event.node)
    if worker is None or not worker.alive:
        return
    job = turn.fleet.jobs[event.ref.job]
    before = worker.state
    move_worker(turn, worker, WorkerState.EXITED)
    worker.exit, worker.exited_at_ns = event.exit, event.at_ns
    worker.steps, worker.training_step = event.steps, event.training_step
    if event.log_lost is not None:
        job.log_lost[event.ref.rank] = event.log_lost + job.log_lost.get(event.ref.rank, LogLoss(0, 0))
    if before is WorkerState.ASSIGNED:
        close_done_starts(turn, job)
    rank_ended(turn, job, event)
    report = ExitReport(
        rank=worker.ref.rank,
        node=worker.node,
        exit=event.exit,
        at_ns=event.at_ns,
        steps=event.steps,
        training_step=event.training_step,
        ran_s=event.ran_s,
        first_step_at_ns=worker.first_step_at_ns,
        end=event.end,
        activity=event.activity,
        log_tail=event.log_tail,
        devices=worker.devices,
        collectives=event.collectives,
        xids=event.xids,
        after_stop=before is WorkerState.STOPPING
        and not worker.script_failed
        and event.exit.source not in ("operator", "fence")
        and not _died_before_stop(turn, job, event),
    )
    match job.state:
        case JobState.STARTING | JobState.RUNNING:
            if event.exit.ok:
                _one_finished(turn, job)
            else:
                begin_recovery(turn, job, report)
        case JobState.RECOVERING:
            incident = turn.fleet.incidents[job.incident]
            if not (worker.script_failed and complete(incident, report)):
                add_exit(turn, job, incident, report)
        case JobState.STOPPING:
            pass
        case _:  # a worker outlives its job only by mistake; its exit changes nothing any more
            return
    settle(turn, job)


def _died_before_stop(turn: Turn, job: Job, event: WorkerExited) -> bool:
    """The exit and our stop crossed: it had died by itself before the decision to stop it was made."""
    incident = turn.fleet.incidents.get(job.incident)
    if incident is None or event.exit.unseen:
        return False
    if event.exit.foreign or (event.end is not None and event.end.exception and event.end.how == "exception"):
        return True
    if event.exit.ok:  # its script had ended before, and the process took its time
        return event.end is not None and 0 < event.end.at_ns < incident.timeline.decided_ns
    return event.at_ns < incident.timeline.decided_ns and not event.exit.ok


def _one_finished(turn: Turn, job: Job) -> None:
    settle_start(turn, job)
    if not job.living:
        end_job(turn, job, JobState.COMPLETED, f"all {len(job.workers)} workers exited with code 0")


def begin_recovery(turn: Turn, job: Job, report: ExitReport) -> None:
    """A worker failed: open an incident, decide, end the rest of the generation."""
    why = f"rank {report.rank} is gone, so its generation {job.generation} cannot continue"
    told = turn.fleet.incidents.get(job.findings.get("stuck", ""))
    if told is not None and told.open:
        _end_of_what_was_stuck(turn, job, told, report)
        end_generation(turn, job, told, why)
        return
    if budget.store_is_away(job, report):
        _wait_for_store(turn, job, report, why)
        return
    kind = "start-failed" if start_failed(report) else "crash"
    incident = take_over_silence(turn, job, report) or open_incident(turn, job, kind, "", report.at_ns)
    said = incident.verdict
    incident.goodput_before = goodput(turn.fleet, job, report.at_ns)
    add_exit(turn, job, incident, report)
    if followed(report):
        _blame_whoever_left(turn, job, incident)
    incident.judged = replace(incident.judged, silence=said)
    end_generation(turn, job, incident, why)


def _blame_whoever_left(turn: Turn, job: Job, incident: Incident) -> None:
    """A rank lost its peer: one that ended with code 0 before, while the others were at work, is why."""
    for report in left_early(job.workers):
        add_exit(turn, job, incident, report)


def _wait_for_store(turn: Turn, job: Job, report: ExitReport, why: str) -> None:
    """It could not restore, and no other try can before the store is back."""
    incident = budget.same_store_wait(turn.fleet, job)
    if incident is None:
        job.store_waits = 0
        incident = open_incident(turn, job, budget.STORE_AWAY, budget.store_verdict(report), report.at_ns)
        add_exit(turn, job, incident, report)
    job.plan = budget.plan_wait(job, turn.chance)
    end_generation(turn, job, incident, why)


def _end_of_what_was_stuck(turn: Turn, job: Job, incident: Incident, report: ExitReport) -> None:
    """A job that was reported to hang failed: one fault, one incident, and the named rank stays named.

    If the very rank that was named died by itself, then its end is the cause and the waiting its sign.
    """
    assert incident.finding is not None
    sentence, fault_ns = incident.finding.sentence, incident.timeline.fault_ns
    incident.timeline.decided_ns = turn.now_ns
    if report.rank in incident.finding.ranks and not followed(report):
        incident.kind, incident.culprit = "crash", None
        add_exit(turn, job, incident, report)
        incident.judged = replace(incident.judged, before=sentence)
    else:
        progress = budget.made_progress(job.spec.restarts, report.steps, report.ran_s)
        job.plan = budget.plan_restart(job, incident.culprit, progress, turn.chance)
        add_exit(turn, job, incident, report)
        incident.judged = Verdict(cause=sentence, then=verdict(report))
    incident.timeline.fault_ns = fault_ns


def rendezvous_lost_at_start(turn: Turn, job: Job, verdict: str) -> None:
    """Workers that may exist already cannot meet any more: end them, without blaming one."""
    incident = open_incident(turn, job, "store-lost", verdict, turn.now_ns)
    job.plan = budget.plan_restart(job, None, False, turn.chance)
    end_generation(turn, job, incident, "its ranks cannot meet without their store")


def end_generation(turn: Turn, job: Job, incident: Incident, why: str) -> None:
    """End what lives of a generation because of an incident; what follows is in the job's plan."""
    assert job.plan is not None
    close_findings(turn, job, generation_ended(turn, job, incident.id, why), keep=incident.id)
    previous = turn.fleet.incidents.get(job.incident)
    if previous is not None and previous is not incident:
        previous.open = False
        count_lost(job, previous, None)
        drop_stopped(previous)
        job.down_ns += max(0, incident.timeline.fault_ns - previous.timeline.fault_ns)
    job.incident = incident.id
    incident.decided = decision_of(job.plan)
    move_job(turn, job, JobState.RECOVERING, f"{incident.verdict}; {job.plan.reason}")
    stop_workers(turn, job, reason=why, grace_s=GRACE_IN_RECOVERY_S, kill_in_collective=True)
    _let_end(turn, job)
    node = job.workers[0].node
    here = turn.fleet.nodes[node].state is NodeState.READY
    if job.plan.restart and job.plan.delay_s == 0 and here:
        reason = "the next generation needs a fresh store"
        ask_rendezvous(turn, job, job.generation + 1, node, reason)
    else:
        drop_rendezvous(turn, job, "its generation is over")


def _let_end(turn: Turn, job: Job) -> None:
    """Wait for workers whose script has already failed, but not forever: they may wait for peers."""
    failing = [w for w in job.workers if w.alive and w.script_failed]
    _ask_to_end(
        turn,
        failing,
        reason="its script has failed and its process is ending by itself",
        grace_s=max(GRACE_TO_END_S, job.spec.stop_grace_s),
        let_end=True,
    )


def start_did_fail(turn: Turn, job: Job, refs: set[WorkerRef], why: str) -> None:
    """Requested workers certainly do not exist: the same budget applies as to a crash."""
    failed = [w for w in job.workers if w.ref in refs and w.state is WorkerState.ASSIGNED]
    reports = []
    for worker in failed:
        move_worker(turn, worker, WorkerState.EXITED)
        worker.exit, worker.exited_at_ns = Exit(None, None, "unknown"), turn.now_ns
        reports.append(
            ExitReport(
                rank=worker.ref.rank,
                node=worker.node,
                exit=worker.exit,
                at_ns=turn.now_ns,
                steps=0,
                end=EndRecord(how="start-failed", message=why),
            )
        )
    if not reports or job.state is not JobState.STARTING:
        return
    begin_recovery(turn, job, reports[0])
    for report in reports[1:]:
        add_exit(turn, job, turn.fleet.incidents[job.incident], report)
    settle(turn, job)


def add_exit(turn: Turn, job: Job, incident: Incident, report: ExitReport) -> None:
    """Record one more exit, and decide again if it shows another culprit or progress unknown so far."""
    if incident.kind == budget.STORE_AWAY and incident.generation != job.generation:
        return  # one more try that the store did not answer
    if (over := budget.plan_end(job, incident, report)) is not None:
        job.plan = over
        charge(incident, report)
        _say_plan(job, incident, over)
        return
    away = budget.store_explains(job, incident, report) and bool(incident.exits)
    if away:
        budget.blame_store(job, incident, report, turn.chance)
    changed = charge(incident, report, job.spec.env_withheld)
    if incident.kind == budget.STORE_AWAY:
        if away and job.plan is not None:
            _say_plan(job, incident, job.plan)
        return
    changed = tell_disagreement(incident, all_ended=not job.living) or changed
    limits = job.spec.restarts
    progress = job.plan.progress if job.plan is not None else False
    if not progress and budget.made_progress(limits, report.steps, report.ran_s):
        progress = changed = True
    if changed:
        job.plan = plan_if_it_can_succeed(turn.fleet, job, incident, progress, turn.chance)
        _say_plan(job, incident, job.plan)


def _say_plan(job: Job, incident: Incident, plan: RestartPlan) -> None:
    incident.decided = decision_of(plan)
    if job.state is JobState.RECOVERING:
        job.reason = f"{incident.verdict}; {plan.reason}"


def settle(turn: Turn, job: Job) -> None:
    """If nothing of the generation is alive any more, do what was planned."""
    if job.living:
        return
    if job.state is JobState.STOPPING:
        _stopped(turn, job)
    elif job.state is JobState.RECOVERING:
        assert job.plan is not None
        incident = turn.fleet.incidents[job.incident]
        incident.timeline.stopped_ns = turn.now_ns
        if incident.culprit is not None:
            incident.judged = replace(incident.judged, others=secondary_note(incident.exits))
        _follow_plan(turn, job, job.plan, incident)


def _stopped(turn: Turn, job: Job) -> None:
    """The last worker is gone, as was wanted: for good, or for the sake of an earlier state."""
    to_restore = job.restore is not None and job.restore.after >= job.generation
    if not to_restore and job.resizing != job.generation:
        end_job(turn, job, JobState.STOPPED, job.reason)
        return
    incident = turn.fleet.incidents.get(job.incident)
    if incident is not None and incident.open:
        incident.timeline.stopped_ns = turn.now_ns
    if to_restore and job.restore is not None:
        start_generation(turn, job, f"{job.restore.by} restores step {job.restore.step}")
    else:
        start_generation(turn, job, job.reason)


def _follow_plan(turn: Turn, job: Job, plan: RestartPlan, incident: Incident) -> None:
    if plan.waits:
        job.store_waits += 1
        move_job(turn, job, JobState.BACKOFF, f"{incident.verdict}; {plan.reason}")
        turn.set_timer(TimerKind.BACKOFF, job, plan.delay_s)
        return
    job.store_waits = 0
    job.fruitless = 0 if plan.progress else job.fruitless + (not plan.free)
    if not plan.restart:
        end_job(turn, job, JobState.FAILED, f"{incident.verdict}; not restarted: {plan.reason}")
        return
    job.restarts += not plan.free
    if incident.culprit is not None:
        job.restarts_by_rank[incident.culprit] = job.restarts_by_rank.get(incident.culprit, 0) + 1
    if plan.delay_s > 0:
        move_job(turn, job, JobState.BACKOFF, f"{incident.verdict}; {plan.reason}")
        turn.set_timer(TimerKind.BACKOFF, job, plan.delay_s)
    else:
        start_generation(turn, job, plan.reason)


def stop_workers(
    turn: Turn,
    job: Job,
    *,
    reason: str,
    grace_s: float,
    kill_in_collective: bool = False,
    **more: Any,
) -> None:
    """Ask each node to end its share of what lives of a job. `more` are other fields of StopWorkers.

    Only an agent's report makes a worker EXITED, also for one whose start is still in progress: the start
    is withdrawn, and the agent answers for an incarnation it does not know that there is none.
    """
    for effect in turn.open_of(job.id):
        if isinstance(effect, StartWorkers):
            turn.close(effect.id)
    # In a recovery only: what a person stops is stopped.
    alive: list[Worker] = [w for w in job.workers if w.alive and not (kill_in_collective and w.script_failed)]
    _ask_to_end(turn, alive, reason=reason, grace_s=grace_s, kill_in_collective=kill_in_collective, **more)


def _ask_to_end(turn: Turn, workers: list[Worker], **how: Any) -> None:
    """`how` are fields of StopWorkers."""
    for node, mine in sorted(by_node(workers).items()):
        for worker in mine:
            if worker.state is not WorkerState.STOPPING:
                move_worker(turn, worker, WorkerState.STOPPING)
        refs = tuple(worker.ref for worker in mine)
        turn.want(StopWorkers(id=turn.next_effect_id(), cause=turn.seq, node=node, workers=refs, **how))


def end_job(turn: Turn, job: Job, state: JobState, reason: str) -> None:
    """The last thing that happens to a job: nothing of it may stay behind."""
    move_job(turn, job, state, reason)
    turn.cancel_timers(job)
    drop_rendezvous(turn, job, "its job has ended")
    close_findings(turn, job, Ending(EndedBy.JOB, f"the job {state}"))
    incident = turn.fleet.incidents.get(job.incident)
    if incident is not None:
        incident.open = False
    job.plan = None
    job.restore, job.resizing = None, 0
    job_ended(turn, job)
    if job.checkpoints is not None and job.checkpoints.failing:
        turn.fleet.incidents[job.checkpoints.failing].open = False
        job.checkpoints.failing = ""
    if job.checkpoints is not None or job.neighbours:
        _release_memory(turn, job, f"its job has {state}")


def _release_memory(turn: Turn, job: Job, reason: str) -> None:
    """States in memory are for the next generation, and there will be none."""
    for node in job.places | dict.fromkeys(worker.node for worker in job.workers):
        if turn.fleet.nodes[node].state is not NodeState.GONE:
            id, number = turn.next_effect_id(), job.generation
            turn.want(
                ReleaseMemory(id=id, cause=turn.seq, reason=reason, node=node, job=job.id, generation=number)
            )
