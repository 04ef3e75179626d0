"""The heart: apply one event to the fleet and return the effects it leads to.

Over 400 lines, because every kind of event is imported and dispatched in this one place.
"""

from __future__ import annotations

from itertools import islice
from typing import assert_never

from torchloom.core.checkpoint_reports import (
    checkpoint_failed,
    checkpoint_rejected,
    checkpoint_saved,
    checkpoint_store_opened,
    restore_differed,
)
from torchloom.core.devices.at_risk import count_blame, tests_imported, wear_reported
from torchloom.core.devices.marks import device_marked
from torchloom.core.devices.reported_health import health_reported, policy_set
from torchloom.core.devices.testing import device_tested, follow_tests, test_did_not_run, test_requested
from torchloom.core.disturbance import control_disturbed
from torchloom.core.foreign_values import store_values_ignored
from torchloom.core.history.trimming import snapshot_verified
from torchloom.core.injection import fault_injected
from torchloom.core.jobs import job_deleted, job_submitted
from torchloom.core.nodes.admission import node_admitted, node_revoked, token_made
from torchloom.core.nodes.floods import agent_flooded
from torchloom.core.nodes.membership import (
    node_drained,
    node_gone,
    node_joined,
    node_leaving,
    node_left,
    node_reachable,
    node_unreachable,
    rendezvous_lost,
)
from torchloom.core.nodes.name_owner import is_of_another_session
from torchloom.core.nodes.replica_links import replica_links_reported
from torchloom.core.nodes.speaking import is_of_a_deposed_weaver, speaks_for_another_node
from torchloom.core.placement.drain import follow_leaving, save_again
from torchloom.core.placement.lighthouses import follow_lighthouses
from torchloom.core.placement.resize import scale_requested
from torchloom.core.placement.standby import keep_spares
from torchloom.core.policy.actions import follow_acting
from torchloom.core.policy.findings import finding_ended, finding_made, witness_answered
from torchloom.core.policy.leave_out import (
    others_finished,
    replicas_measured,
    seat_failed,
    seated,
    time_is_up,
)
from torchloom.core.policy.link_findings import links_measured, links_not_measured
from torchloom.core.policy.rebalance import pace_measured, shares_changed, shares_not_changed
from torchloom.core.policy.rebalance import rolled_back as shares_rolled_back
from torchloom.core.recovery.generation_end import start_did_fail, worker_exited
from torchloom.core.recovery.generation_start import (
    find_worker,
    forget_rendezvous,
    holds_rendezvous,
    rendezvous_started,
    retry_waiting,
    start_generation,
    workers_started,
)
from torchloom.core.recovery.incidents import count_lost, recovered
from torchloom.core.recovery.script_failed import script_failed
from torchloom.core.steering.driver import (
    change_cancelled,
    change_requested,
    first_step_made,
    mail_failed,
    ranks_answered,
    step_reached,
    time_passed,
)
from torchloom.core.steering.restart import restart_requested
from torchloom.core.steering.restore import restore_not_applied, restore_requested
from torchloom.core.steering.shared import change_shared, share_failed
from torchloom.core.steering.stop import boundary_agreed, boundary_not_reached, stop_again, stop_requested
from torchloom.core.stream_time import in_stream_time, stream_time
from torchloom.core.turn import Turn, jobs_of
from torchloom.model.effects import (
    Effect,
    InjectFault,
    MoveLighthouse,
    PostMail,
    ReleaseMemory,
    RemoveJobFiles,
    SeatReplica,
    ShareChange,
    StartRendezvous,
    StartWorkers,
    StopRendezvous,
    StopWorkers,
    TestDevice,
    WarmSpawner,
)
from torchloom.model.events import (
    AgentFlooded,
    ChangeCancelled,
    ChangeRequested,
    ChangeShared,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSaved,
    CheckpointStoreOpened,
    ControlDisturbed,
    Decided,
    DeviceHealthReported,
    DeviceMarked,
    DevicePolicySet,
    DeviceTested,
    DeviceTestRequested,
    DeviceTestsImported,
    DeviceWearReported,
    EffectDone,
    EffectFailed,
    Envelope,
    Event,
    FaultInjected,
    FindingEnded,
    FindingMade,
    FirstStep,
    JobDeleted,
    JobSubmitted,
    JoinTokenMade,
    LeaseTaken,
    NodeAdmitted,
    NodeDrained,
    NodeGone,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeReachable,
    NodeRevoked,
    NodeUnreachable,
    PaceMeasured,
    RanksAnswered,
    RendezvousLost,
    RendezvousStarted,
    ReplicaLinksReported,
    ReplicasMeasured,
    RestartRequested,
    RestoreDiffered,
    RestoreRequested,
    ScaleRequested,
    ScriptFailed,
    SnapshotVerified,
    StepReached,
    StopRequested,
    StoreValuesIgnored,
    TimerFired,
    WitnessAnswered,
    WorkerExited,
    WorkerRegistered,
    WorkersStarted,
)
from torchloom.model.fleet import Fleet, JobState
from torchloom.model.timers import TimerKind
from torchloom.model.transaction.messages import Kind

REMEMBERED_EVENTS = 4096
FORGOTTEN_TOGETHER = 1024
"""One by one would be slow: the front of a dict is searched past all that was deleted there."""
STOP_AGAIN_S = 1.0


def apply(fleet: Fleet, envelope: Envelope, seq: int, now_ns: int) -> list[Effect]:
    """Change `fleet` by one event of the stream. An event that was applied before changes nothing."""
    if seq <= fleet.seq:
        return []
    fleet.seq = seq
    fleet.now_ns, fleet.stamp_ns = stream_time(fleet, now_ns), now_ns
    if envelope.id in fleet.seen:
        return []
    fleet.seen[envelope.id] = None
    if len(fleet.seen) >= REMEMBERED_EVENTS + FORGOTTEN_TOGETHER:
        for old in list(islice(fleet.seen, FORGOTTEN_TOGETHER)):
            del fleet.seen[old]
    if is_of_a_deposed_weaver(fleet, envelope) or is_of_another_session(fleet, envelope):
        return []
    if speaks_for_another_node(fleet, envelope.body):
        return []
    turn = Turn(fleet, seq, fleet.now_ns, envelope.id)
    _dispatch(turn, in_stream_time(fleet, envelope))
    _follow_outcomes(turn)
    if fleet.leaving:
        follow_leaving(turn)
        _follow_outcomes(turn)
    if fleet.acting:
        follow_acting(turn)
        _follow_outcomes(turn)
    if fleet.to_test:
        follow_tests(turn)
    if turn.room_appeared:
        retry_waiting(turn)
    if fleet.lighthouses and (turn.room_appeared or turn.seats_changed):
        follow_lighthouses(turn)
    if (turn.room_appeared or turn.seats_changed) and keep_spares(turn):
        retry_waiting(turn)
        keep_spares(turn)
    return turn.effects


def _dispatch(turn: Turn, event: Event) -> None:
    match event:
        case JobSubmitted():
            job_submitted(turn, event)
        case StopRequested():
            stop_requested(turn, event)
        case RestoreRequested():
            restore_requested(turn, event)
        case ScaleRequested():
            scale_requested(turn, event)
        case RestartRequested():
            restart_requested(turn, event)
        case ChangeRequested():
            change_requested(turn, event)
        case ChangeCancelled():
            change_cancelled(turn, event)
        case RanksAnswered():
            ranks_answered(turn, event)
        case ChangeShared():
            change_shared(turn, event)
        case StepReached():
            step_reached(turn, event)
        case JobDeleted():
            job_deleted(turn, event)
        case NodeJoined():
            node_joined(turn, event)
        case NodeUnreachable():
            node_unreachable(turn, event)
        case NodeReachable():
            node_reachable(turn, event)
        case NodeLeft():
            node_left(turn, event)
        case NodeLeaving():
            node_leaving(turn, event)
        case NodeGone():
            node_gone(turn, event)
        case NodeDrained():
            node_drained(turn, event)
        case DeviceMarked():
            device_marked(turn, event)
        case DeviceHealthReported():
            health_reported(turn, event)
        case DevicePolicySet():
            policy_set(turn, event)
        case DeviceWearReported():
            wear_reported(turn, event)
        case DeviceTestRequested():
            test_requested(turn, event)
        case DeviceTested():
            device_tested(turn, event)
        case DeviceTestsImported():
            tests_imported(turn, event)
        case JoinTokenMade():
            token_made(turn, event)
        case NodeAdmitted():
            node_admitted(turn, event)
        case NodeRevoked():
            node_revoked(turn, event)
        case RendezvousStarted():
            rendezvous_started(turn, event)
        case RendezvousLost():
            rendezvous_lost(turn, event)
        case WorkersStarted():
            workers_started(turn, event)
        case EffectFailed():
            _effect_failed(turn, event)
        case EffectDone():
            done = turn.fleet.outbox.get(event.effect)
            if isinstance(done, StopWorkers):
                turn.room_appeared = True  # a job may wait for its own older workers to end
            turn.close(event.effect)
            if isinstance(done, SeatReplica):
                seated(turn, done)
        case WorkerRegistered():
            worker = find_worker(turn.fleet, event.ref, event.node)
            if worker is not None:
                worker.devices = event.devices
        case FirstStep():
            _first_step(turn, event)
        case WorkerExited():
            worker_exited(turn, event)
            others_finished(turn, event.ref.job)
        case ScriptFailed():
            script_failed(turn, event)
        case CheckpointStoreOpened():
            checkpoint_store_opened(turn, event)
        case CheckpointSaved():
            checkpoint_saved(turn, event)
        case CheckpointFailed():
            checkpoint_failed(turn, event)
        case CheckpointRejected():
            checkpoint_rejected(turn, event)
        case RestoreDiffered():
            restore_differed(turn, event)
        case StoreValuesIgnored():
            store_values_ignored(turn, event)
        case FaultInjected():
            fault_injected(turn, event)
        case FindingMade():
            finding_made(turn, event)
        case FindingEnded():
            finding_ended(turn, event)
        case PaceMeasured():
            pace_measured(turn, event)
        case ReplicasMeasured():
            replicas_measured(turn, event)
        case ReplicaLinksReported():
            replica_links_reported(turn, event)
        case WitnessAnswered():
            witness_answered(turn, event)
        case TimerFired():
            _timer_fired(turn, event)
        case LeaseTaken():
            if event.epoch > turn.fleet.epoch:  # a deposed weaver's claim may come late
                turn.fleet.epoch, turn.fleet.leader = event.epoch, event.weaver
                turn.fleet.leader_version = event.version
        case ControlDisturbed():
            control_disturbed(turn, event)
        case AgentFlooded():
            agent_flooded(turn, event)
        case SnapshotVerified():
            snapshot_verified(turn.fleet, event)
        case Decided():
            pass
        case _:
            assert_never(event)


def _effect_failed(turn: Turn, event: EffectFailed) -> None:
    effect = turn.fleet.outbox.get(event.effect)
    if effect is None or effect.node != event.node:
        return
    if isinstance(effect, MoveLighthouse) or (isinstance(effect, StopWorkers) and effect.strays):
        return  # it stays open: it is sent again, and the agent tries again
    turn.close(event.effect)
    match effect:
        case StartWorkers():
            job = turn.fleet.jobs.get(effect.job)
            if job is not None and job.generation == effect.generation:
                start_did_fail(turn, job, {start.ref for start in effect.launches}, event.why)
        case StartRendezvous():
            job = turn.fleet.jobs.get(effect.store.job)
            if job is not None and holds_rendezvous(job, effect.store, effect.node):
                forget_rendezvous(turn, job)
                if job.state is JobState.STARTING:
                    start_did_fail(turn, job, {w.ref for w in job.workers}, event.why)
        case StopWorkers():
            for job_id in jobs_of(effect):
                job = turn.fleet.jobs.get(job_id)
                if job is not None and job.living:
                    turn.set_timer(TimerKind.STOP_AGAIN, job, STOP_AGAIN_S)
        case StopRendezvous():
            pass  # the inventory of the next join shows whether it is still there
        case PostMail():
            mail_failed(turn, effect, event.why)
        case TestDevice():
            test_did_not_run(turn, effect, event.why)
        case ShareChange():
            share_failed(turn, effect, event.why)
        case MoveLighthouse():
            pass  # see above
        case SeatReplica():
            seat_failed(turn, effect, event.why)
        case InjectFault():
            pass  # the failure is reported, and a fault that did not happen does no harm
        case WarmSpawner():
            pass  # the place is still kept; a start there takes longer
        case RemoveJobFiles() | ReleaseMemory():
            pass  # files that cannot be removed now are not worth retrying forever


def _first_step(turn: Turn, event: FirstStep) -> None:
    worker = find_worker(turn.fleet, event.ref, event.node)
    if worker is None or worker.first_step_at_ns:
        return
    worker.first_step_at_ns = event.at_ns
    job = turn.fleet.jobs[event.ref.job]
    first_step_made(turn, job)
    incident = turn.fleet.incidents.get(job.incident)
    if incident is None or not incident.open or incident.generation >= event.ref.generation:
        return
    incident.open = False
    job.incident = ""
    incident.timeline.first_step_ns = event.at_ns
    job.down_ns += max(0, event.at_ns - incident.timeline.fault_ns)
    next_step = None if event.training_step is None else event.training_step + event.paused
    count_lost(job, incident, next_step)
    recovered(turn, job, incident)
    count_blame(turn, incident)


def _timer_fired(turn: Turn, event: TimerFired) -> None:
    timer = turn.fleet.timers.get(event.timer)
    if timer is None or timer.at_ns > turn.now_ns:
        return  # a weaver only guesses the stream's clock: one that fired early stays set and fires again
    del turn.fleet.timers[timer.id]
    job = turn.fleet.jobs.get(timer.job)
    if job is None:
        return
    match timer.kind:
        case TimerKind.STEER:
            time_passed(turn, job)
        case TimerKind.STOP_BOUNDARY:
            boundary_not_reached(turn, job)
        case TimerKind.STOP_AGAIN:
            stop_again(turn, job)
        case TimerKind.SAVE_AGAIN:
            save_again(job)
        case TimerKind.SAVE_FIRST:
            pass  # it is looked at in every turn
        case TimerKind.TAKE_BACK:
            time_is_up(turn, job)
        case TimerKind.SHRINK:
            if job.state is JobState.WAITING:
                start_generation(turn, job, "it has waited for room")
        case TimerKind.BACKOFF:
            if job.state is JobState.BACKOFF:
                start_generation(turn, job, f"the wait is over: {job.reason}")
        case _:
            assert_never(timer.kind)


def _follow_outcomes(turn: Turn) -> None:
    """What the outcome of an operation that ended in this turn leads to beyond its record."""
    while turn.ended_operations:
        name, operation = turn.ended_operations.pop(0)
        job = turn.fleet.jobs.get(name)
        record = job.operations.get(operation) if job is not None else None
        if job is None or record is None:
            continue
        if record.state == "applied":
            if record.kind is Kind.PROBE:
                links_measured(turn, job, record)
            elif record.kind is Kind.STOP:
                boundary_agreed(turn, job)
            elif record.kind is Kind.SET:
                shares_changed(turn, job, record)
            elif record.kind is Kind.RESTORE:
                shares_rolled_back(turn, job)
        elif record.kind is Kind.PROBE:
            links_not_measured(turn, job, record)
        elif record.kind is Kind.RESTORE:
            restore_not_applied(turn, job, record)
        elif record.kind is Kind.STOP:
            boundary_not_reached(turn, job)
        elif record.kind is Kind.SET:
            shares_not_changed(turn, job, record)
