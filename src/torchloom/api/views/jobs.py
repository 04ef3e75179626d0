"""Fleet records to API models. Pure: what is shown is a function of state, pulses and the time given."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import Literal

from torchloom.api.schemas.bodies import (
    DeviceFaultView,
    DeviceView,
    ExitView,
    IncidentView,
    JobDetail,
    JobSummary,
    LeavingView,
    NodeView,
    Number,
    ReplicaView,
    TimelineView,
    WorkerView,
)
from torchloom.core.config.schedule import merge
from torchloom.core.config.settings import MAX_STEPS
from torchloom.core.device_faults.classify import fault_of
from torchloom.core.nodes.lost_nodes import waiting_note
from torchloom.core.placement.place import wanted
from torchloom.core.policy.leave_out import seat_note
from torchloom.core.recovery.culprit import culprits
from torchloom.core.recovery.incidents import goodput
from torchloom.core.steering.versions import version_for, version_of_state
from torchloom.model.device_faults import DeviceFault
from torchloom.model.fleet import Fleet, Job, JobState, Node, Worker, WorkerState
from torchloom.model.ids import replica_id
from torchloom.model.incidents import ExitReport, Incident, Timeline
from torchloom.model.messages import WorkerPulse
from torchloom.model.worker import DeviceUse, LogLoss

Pulses = dict[int, WorkerPulse]
_STANDS_S = 5.0
_STANDS_STEPS = 10
"""A job in which no rank makes progress for this long, and for this many step times, has no pace."""

_WORST_FIRST: tuple[tuple[WorkerState, Literal["running", "starting", "stopping", "exited"]], ...] = (
    (WorkerState.EXITED, "exited"),
    (WorkerState.STOPPING, "stopping"),
    (WorkerState.ASSIGNED, "starting"),
    (WorkerState.RUNNING, "running"),
)


def job_detail(fleet: Fleet, job: Job, pulses: Pulses, now_ns: int) -> JobDetail:
    spec = job.spec
    return JobDetail(
        **job_summary(fleet, job, pulses, now_ns).model_dump(),
        seq=fleet.seq,
        spawn=spec.spawn,
        interpreter=spec.interpreter,
        cwd=spec.cwd,
        args=list(spec.program.args),
        env_names=list(spec.env_names),
        workers=[
            worker_view(worker, pulses.get(worker.ref.rank), job.log_lost.get(worker.ref.rank))
            for worker in job.workers
        ],
        incident_list=[incident_view(fleet.incidents[id]) for id in job.incidents if id in fleet.incidents],
    )


def job_summary(fleet: Fleet, job: Job, pulses: Pulses, now_ns: int) -> JobSummary:
    step, is_training, total = _progress(job, pulses)
    rate = _steps_per_s(job, pulses)
    until_ns = job.ended_at_ns if job.ended else now_ns
    elapsed_s = max(0.0, (until_ns - job.started_at_ns) / 1e9) if job.started_at_ns else 0.0
    saved = job.checkpoints.saved if job.checkpoints else None
    return JobSummary(
        id=job.id,
        state=str(job.state),
        reason=job.reason + waiting_note(fleet, job) + seat_note(job) + _open_note(fleet, job),
        ended=job.ended,
        generation=job.generation,
        restarts=job.restarts,
        max_restarts=job.spec.restarts.max_restarts,
        fruitless=job.fruitless,
        max_fruitless=job.spec.restarts.max_fruitless,
        world_size=len(job.workers) or wanted(job),
        wanted_workers=wanted(job),
        standby=job.spec.standby,
        spares=list(job.spares),
        running_workers=sum(worker.alive and worker.pid > 0 for worker in job.workers),
        step=step,
        step_is_training=is_training,
        total_steps=total,
        steps_per_s=rate,
        eta_s=max(0, total - step) / rate if total is not None and rate > 0 and not job.ended else None,
        goodput=goodput(fleet, job, until_ns),
        elapsed_s=elapsed_s,
        submitted_at_ns=job.submitted_at_ns,
        started_at_ns=job.started_at_ns,
        ended_at_ns=job.ended_at_ns,
        by=job.by,
        program=job.spec.program.target,
        incidents=list(job.incidents),
        open_incidents=[incident.id for incident in _open_incidents(fleet, job)],
        labels=job.spec.labels,
        max_steps=_max_steps(job),
        progress=min(1.0, step / total) if total else None,
        samples_per_s=_samples_per_s(job, pulses),
        last_loss=_loss(pulses.values()),
        replicas=replica_views(job, pulses),
        checkpoint_step=saved.step if saved else None,
        checkpoint_interval=(saved.interval or None) if saved else None,
        restoring=job.restore.step if job.restore else None,
        paused=job.paused,
        config_version=config_version(job, pulses),
        operation=next((r.id for r in job.operations.values() if not r.ended), ""),
    )


def _progress(job: Job, pulses: Pulses) -> tuple[int, bool, int | None]:
    """The step that all ranks have reached, whether that is the script's own number, and the known end."""
    # A worker that has ended sends no more pulses; its exit reported its last step.
    exits = {w.ref.rank: w.training_step for w in job.workers if w.ref.rank not in pulses}
    found = (*exits.values(), *(p.training_step for p in pulses.values()))
    told = [step for step in found if step is not None]
    totals = [p.total_steps for p in pulses.values() if p.total_steps is not None]
    total, end = max(totals) if totals else job.spec.expected_steps, _max_steps(job)
    total = min(total, end) if total and end else end or total
    if told:
        return min(told), True, total
    counts = [
        max(worker.steps, pulses[worker.ref.rank].steps if worker.ref.rank in pulses else 0)
        for worker in job.workers
    ]
    return min(counts, default=0), False, total


def _max_steps(job: Job) -> int | None:
    """The step at which the job ends: as set last, else as submitted."""
    found = merge(job.schedule).get(MAX_STEPS.name, job.spec.max_steps)
    return found if isinstance(found, int) else None


def _steps_per_s(job: Job, pulses: Pulses) -> float:
    """The slowest rank sets the pace; a paused or stalled job has none."""
    slowest = max((p.step_s for p in pulses.values()), default=0.0)
    if slowest <= 0 or job.ended or job.paused:
        return 0.0
    stands = min(p.idle_s for p in pulses.values()) > max(_STANDS_S, _STANDS_STEPS * slowest)
    return 0.0 if stands else 1.0 / slowest


def _open_note(fleet: Fleet, job: Job) -> str:
    """What is wrong with a job whose workers all run: its state does not show it."""
    if job.state is not JobState.RUNNING:
        return ""
    names = [
        f"{one.id} ({one.kind}{'' if one.culprit is None else f', rank {one.culprit}'})"
        for one in _open_incidents(fleet, job)
    ]
    return f"; open: {', '.join(names)}" if names else ""


def _open_incidents(fleet: Fleet, job: Job) -> list[Incident]:
    found = (fleet.incidents.get(id) for id in job.incidents)
    return [incident for incident in found if incident is not None and incident.open]


def _samples_per_s(job: Job, pulses: Pulses) -> float | None:
    told = [p.metrics["samples_per_s"] for p in pulses.values() if "samples_per_s" in p.metrics]
    return sum(told) if told and not job.ended else None


def _loss(pulses: Iterable[WorkerPulse]) -> Number | None:
    """Mean over the ranks; NaN if one rank's loss is NaN."""
    told = [p.metrics["loss"] for p in pulses if "loss" in p.metrics]
    return _number(sum(told) / len(told)) if told else None


def _number(value: float) -> Number:
    """As JSON can say it."""
    if math.isnan(value):
        return "nan"
    return value if math.isfinite(value) else "inf" if value > 0 else "-inf"


def config_version(job: Job, pulses: Pulses) -> int:
    """The version for the next step; if no training step is reported, that of the newest change which the
    workers report."""
    if (step := next_step(pulses)) is not None:
        return version_for(job, step)
    told = [p.config_version for p in pulses.values()]
    newest = max(told) if told else max((entry.version for entry in job.schedule), default=0)
    return version_of_state(job, newest)


def next_step(pulses: Pulses) -> int | None:
    """The next training step of the job; None if the script does not report its step."""
    told = [p.training_step for p in pulses.values() if p.training_step is not None]
    return max(told) + 1 if told else None


def replica_views(job: Job, pulses: Pulses) -> list[ReplicaView]:
    made: list[ReplicaView] = []
    for index, members in groupby(job.workers, key=lambda worker: worker.replica):
        workers = list(members)
        states = {worker.state for worker in workers}
        told = {w.ref.rank: pulses[w.ref.rank] for w in workers if w.alive and w.ref.rank in pulses}
        behind = min(told.values(), key=lambda pulse: pulse.steps, default=None)
        made.append(
            ReplicaView(
                id=replica_id(job.id, index),
                index=index,
                state=next(word for state, word in _WORST_FIRST if state in states),
                workers=len(workers),
                running_workers=sum(worker.alive and worker.pid > 0 for worker in workers),
                step=min(max(w.steps, told[w.ref.rank].steps if w.ref.rank in told else 0) for w in workers),
                phase=behind.phase if behind is not None else "",
                last_loss=_loss(told.values()),
            )
        )
    return made


def worker_view(worker: Worker, pulse: WorkerPulse | None, log_lost: LogLoss | None = None) -> WorkerView:
    live = pulse if worker.alive else None
    lost = log_lost or LogLoss(0, 0)
    if live is not None and live.log_lost is not None:
        lost += live.log_lost
    return WorkerView(
        rank=worker.ref.rank,
        replica=worker.replica,
        node=worker.node,
        local_rank=worker.local_rank,
        pid=worker.pid,
        state=str(worker.state),
        incarnation=worker.ref.incarnation,
        devices=[device_view(device) for device in worker.devices],
        steps=max(worker.steps, pulse.steps if pulse else 0),
        step_s=pulse.step_s if pulse else 0.0,
        training_step=pulse.training_step if pulse else None,
        phase=live.phase if live else "",
        phase_s=live.phase_s if live else 0.0,
        idle_s=live.idle_s if live else 0.0,
        data_wait_s=pulse.data_wait_s if pulse else 0.0,
        collectives=pulse.collectives if pulse else 0,
        collective=pulse.collective if pulse else "",
        in_collective_s=live.in_collective_s if live else 0.0,
        recorder=pulse.recorder if pulse else "none",
        metrics={name: _number(value) for name, value in pulse.metrics.items()} if pulse else {},
        exit=worker.exit.describe() if worker.exit else "",
        blind=worker.blind,
        log_lost_lines=lost.lines,
        log_lost_bytes=lost.bytes,
        copy_trouble=live.copy_trouble if live else "",
    )


def device_view(device: DeviceUse) -> DeviceView:
    return DeviceView(device=device.device, kind=device.kind, name=device.name)


def recovery_s(timeline: Timeline) -> float | None:
    """From the fault, or from when we saw it, to the first step after it."""
    start_ns = timeline.fault_ns or timeline.detected_ns
    if not timeline.first_step_ns or not start_ns:
        return None
    return max(0.0, (timeline.first_step_ns - start_ns) / 1e9)


def incident_view(incident: Incident) -> IncidentView:
    line, decided = incident.timeline, incident.decided
    return IncidentView(
        id=incident.id,
        job=incident.job,
        generation=incident.generation,
        kind=incident.kind,
        verdict=incident.verdict,
        fault=device_fault_view(fault_of(incident)),
        decision=incident.decision,
        action=decided.action if decided is not None else "",
        outcome=decided.outcome if decided is not None else "",
        reason=decided.reason if decided is not None else "",
        culprit=incident.culprit,
        culprits=list(culprits(incident)),
        open=incident.open,
        lost_steps=incident.lost_steps,
        recovery_s=recovery_s(line),
        resolution=incident.resolution,
        ended_by=incident.ending.by if incident.ending is not None else "",
        confidence=incident.finding.confidence if incident.finding is not None else None,
        timeline=TimelineView(
            fault_ns=line.fault_ns,
            first_sign_ns=line.first_sign_ns,
            detected_ns=line.detected_ns,
            decided_ns=line.decided_ns,
            stopped_ns=line.stopped_ns,
            spawned_ns=line.spawned_ns,
            restored_ns=line.restored_ns,
            first_step_ns=line.first_step_ns,
        ),
    )


def device_fault_view(fault: DeviceFault | None) -> DeviceFaultView | None:
    if fault is None:
        return None
    return DeviceFaultView(kind=fault.kind, blame=fault.blame, sentence=fault.sentence, advice=fault.advice)


def exit_view(report: ExitReport) -> ExitView:
    end = report.end
    return ExitView(
        rank=report.rank,
        node=report.node,
        how=report.exit.describe(),
        code=report.exit.code,
        signal=report.exit.signal,
        source=report.exit.source,
        at_ns=report.at_ns,
        steps=report.steps,
        training_step=report.training_step,
        ran_s=report.ran_s,
        secondary=report.secondary,
        after_stop=report.after_stop,
        exception=end.exception if end else "",
        message=end.message if end else "",
        traceback=end.traceback if end else "",
        activity=report.activity,
        log_tail=list(report.log_tail),
        devices=[device_view(device) for device in report.devices],
    )


def node_view(fleet: Fleet, node: Node, seen_s: float | None, dropped: int = 0) -> NodeView:
    admitted = fleet.admissions.nodes.get(node.id)
    return NodeView(
        id=node.id,
        state=str(node.state),
        reason=node.reason,
        hostname=node.inventory.hostname,
        address=node.inventory.address,
        max_workers=node.inventory.max_workers,
        workers=node.taken,
        drained=node.drained.describe() if node.drained is not None else node.ends,
        leaving=[
            LeavingView(job=name, note=job.leaving.note, stays=job.leaving.stays)
            for name in fleet.leaving
            if (job := fleet.jobs[name]).leaving is not None and node.closed and name in node.jobs
        ],
        spare=dict(node.spare),
        devices=[device_view(device) for device in node.inventory.devices],
        seen_s=seen_s,
        dropped_messages=dropped,
        pod=admitted.pod if admitted is not None else "",
    )
