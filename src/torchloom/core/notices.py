"""Puts into words what an event changed, as core/changes.py found it. Looks at no fleet, changes nothing."""

from __future__ import annotations

from typing import assert_never

from torchloom.core.changes import Change
from torchloom.core.nodes.replica_links import links_notice
from torchloom.core.steering.operations import asked, sentence
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
from torchloom.model.notice import Notice, Topic


def notice_of(change: Change) -> Notice:
    """One event as people follow it."""
    event = change.event
    kind, (topic, text) = str(event.__struct_config__.tag), _words(event)
    if change.refused and isinstance(event, NodeJoined):
        host = event.inventory.hostname
        kind, text = "node-refused", f"{host} did not get the name {event.node}: it is taken"
    more: list[Topic] = ["job"] if change.jobs and topic != "job" else []
    told = "; ".join(sentence(change.job, operation) for operation in change.operations)
    if told:
        text = told if topic == "system" else f"{text}; {told}"
        topic, more = ("config", more) if topic == "system" else (topic, [*more, "config"])
    if change.incidents:
        more.append("incident")
    ref = getattr(event, "ref", None)
    return Notice(
        seq=change.seq,
        at_ns=change.at_ns,
        kind=kind,
        topics=(topic, *more),
        text=text,
        job=change.job,
        node=str(getattr(event, "node", "")),
        rank=None if ref is None else ref.rank,
        by=str(getattr(event, "by", "")),
        jobs=change.jobs,
        incidents=change.incidents,
    )


def _words(event: Event) -> tuple[Topic, str]:
    match event:
        case ChangeRequested():
            return "config", f"{event.by} asked {event.job} to {asked(event.kind, event.values)}"
        case ChangeCancelled():
            return "config", f"{event.by} cancelled operation {event.operation} of {event.job}"
        case RanksAnswered():
            return "system", f"ranks of {event.job} on {event.node} answered"
        case ChangeShared():
            return "system", f"the replicas of {event.set}: {event.outcome.reason}"
        case StepReached():
            return "system", f"{event.job} is near step {event.step}"
        case JobSubmitted():
            return "job", f"{event.by} submitted {event.job} with {event.spec.world_size} workers"
        case StopRequested():
            return "job", f"{event.by} asked {event.job} to stop" + (" at once" if event.kill else "")
        case RestoreRequested():
            return "job", f"{event.by} asked {event.job} to go back to step {event.step}"
        case ScaleRequested():
            return "job", f"{event.by} asked for {event.workers} workers of {event.job}"
        case RestartRequested():
            return "job", f"{event.by} asked {event.job} to restart"
        case JobDeleted():
            return "job", f"{event.by} deleted {event.job}"
        case NodeJoined():
            return "node", f"{event.node} joined with {len(event.inventory.workers)} running workers"
        case NodeUnreachable():
            return "node", f"{event.node} has been silent for {event.silent_s:.1f} s"
        case NodeReachable():
            return "node", f"{event.node} is reachable again"
        case NodeLeaving():
            why = f" ({event.why})" if event.why else ""
            return "node", f"the host of {event.node} is taken away within {event.within_s:.0f} s{why}"
        case NodeLeft():
            return "node", f"the agent of {event.node} was stopped"
        case NodeDrained():
            what = "is open for workers again" if event.open else "is drained"
            if event.move:
                what += ", and its jobs are to leave it"
            return "node", f"{event.node} {what}, by {event.by}" + (f": {event.why}" if event.why else "")
        case NodeGone() if event.fenced:
            return "node", f"{event.node} has ended its workers of {', '.join(event.fenced)} by now"
        case NodeGone():
            return "node", f"{event.by} confirmed that the host of {event.node} is gone"
        case DeviceMarked():
            marked = {"fail": "reported that it failed", "drain": "drains it", "return": "returned it to use"}
            why = f": {event.why}" if event.why else ""
            return "device", f"{event.device} of {event.node}: {event.by} {marked[event.mark]}{why}"
        case DeviceHealthReported():
            return "device", "; ".join(
                f"{one.device} is {one.level}" + (f" ({one.source}: {one.why})" if one.why else "")
                for one in event.health[:8]
            )
        case DevicePolicySet():
            return "device", f"{event.by} set what is done about devices' health"
        case DeviceWearReported():
            return "device", f"{event.node} reported what it counted on {len(event.wear)} devices"
        case DeviceTestRequested():
            return "device", f"{event.by} wants {event.device} tested"
        case DeviceTested():
            how = "passed its test" if event.result.passed else f"failed its test: {event.result.why}"
            return "device", f"{event.device} of {event.node} {how}"
        case DeviceTestsImported():
            bad = sum(not one.result.passed for one in event.results)
            return "device", f"{event.by} imported tests of {len(event.results)} devices; {bad} did not pass"
        case JoinTokenMade():
            hosts = f"{event.hosts} hosts" if event.hosts != 1 else "one host"
            whom = f"the node {event.node}" if event.node else hosts
            return "node", f"{event.by} made a join token for {whom}, valid for {event.valid_s:g} s"
        case NodeAdmitted():
            return "node", f"{event.node} presented the join token {event.token}"
        case NodeRevoked():
            return "node", f"{event.by} revoked the credential of {event.node}"
        case RendezvousStarted():
            return "system", f"the store of {event.store.job} is up on {event.node}"
        case RendezvousLost():
            return "worker", f"the store of {event.store.job} on {event.node} {event.exit.describe()}"
        case WorkersStarted():
            return "worker", f"{len(event.workers)} workers were started on {event.node}"
        case EffectFailed():
            return "system", f"{event.node} could not carry out a command: {event.why}"
        case EffectDone():
            return "system", f"{event.node} carried out a command"
        case WorkerRegistered():
            names = ", ".join(device.device for device in event.devices)
            return "device", f"rank {event.ref.rank} of {event.ref.job} uses {names or 'no device'}"
        case FirstStep():
            did = "paused before its first step" if event.paused else "completed its first step"
            return "worker", f"rank {event.ref.rank} of {event.ref.job} {did}"
        case WorkerExited():
            return "worker", f"rank {event.ref.rank} of {event.ref.job} {event.exit.describe()}"
        case ScriptFailed():
            how = event.end.exception or f"code {event.end.code}"
            return "worker", f"the script of rank {event.ref.rank} of {event.ref.job} failed with {how}"
        case CheckpointStoreOpened():
            if event.restored:
                return "worker", f"{event.ref.job} resumed from {event.restored}, from {event.restored_from}"
            return "worker", f"{event.ref.job} found no checkpoint and begins from nothing"
        case CheckpointSaved():
            return "worker", f"{event.ref.job} saved step {event.saved.step}"
        case CheckpointFailed():
            return "worker", f"rank {event.ref.rank} of {event.ref.job} could not save step {event.step}"
        case CheckpointRejected():
            names = ", ".join(one.name for one in event.rejected)
            return "worker", f"{event.ref.job} passed over damaged checkpoints: {names}"
        case RestoreDiffered():
            places = ", ".join(event.places)
            return (
                "worker",
                f"rank {event.ref.rank} of {event.ref.job} restored {places} otherwise than saved",
            )
        case StoreValuesIgnored():
            return "worker", f"rank {event.ref.rank} of {event.ref.job} ignored foreign values in its store"
        case FaultInjected():
            ranks = ", ".join(map(str, event.ranks))
            return "job", f"{event.by} injected {event.fault.kind} into rank {ranks} of {event.job}"
        case FindingMade():
            return "incident", f"{event.job}: {event.finding.sentence}"
        case FindingEnded():
            return "incident", f"{event.job}: resolved after {event.lasted_s:.1f} s"
        case PaceMeasured():
            ranks = ", ".join(f"{rank}: {own_s:.3g} s" for rank, own_s in event.own_s.items())
            return "incident", f"{event.job}: own time by rank {ranks}, others {event.peers_s:.3g} s"
        case ReplicasMeasured():
            mine = "without it" if event.own_s is None else f"its own time {event.own_s:.3g} s"
            return "incident", f"{event.job}: {mine}, the other replicas {event.others_s:.3g} s"
        case ReplicaLinksReported():
            return "incident", links_notice(event)
        case WitnessAnswered():
            return "incident", f"{event.job}: {event.witness.sentence}"
        case TimerFired():
            return "system", "a wait is over"
        case ControlDisturbed():
            return "incident", f"the control plane did not act for {event.lasted_s:.0f} s: {event.why}"
        case AgentFlooded(over=over):
            what = "keeps to its share again" if over else f"floods the stream: {event.why}"
            return "incident", f"the agent of {event.node} {what}"
        case SnapshotVerified():
            return "system", f"a snapshot was verified; events up to {event.base} are no longer needed"
        case LeaseTaken():
            return "system", f"{event.weaver} leads with epoch {event.epoch}"
        case Decided():
            return "system", "; ".join(dict.fromkeys(effect.reason for effect in event.effects))
        case _:
            assert_never(event)
