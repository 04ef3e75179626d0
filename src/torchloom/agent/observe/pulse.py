"""Looks into the black boxes at regular times: first steps and devices as events, everything else as
telemetry.

A pulse means progress, because it is read from what the training itself wrote. Telemetry is lossy; events are
not. Logs are bounded on the same beat.
"""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from statistics import median

from torchloom.agent.checkpoints.save_reports import look_at_saves
from torchloom.agent.host import Host, LocalWorker, ToldText
from torchloom.agent.logs import files, times
from torchloom.agent.observe import words
from torchloom.agent.observe.boxes import ReadableBox, is_under_way
from torchloom.agent.observe.guarded import guarded
from torchloom.agent.processes.script_failures import look_at_ends
from torchloom.bus.protocol import Bus
from torchloom.core.nodes.report_pace import pulse_every_s
from torchloom.model.devices import DeviceReading
from torchloom.model.events import FirstStep, StoreValuesIgnored, WorkerRegistered
from torchloom.model.messages import RankSteps, Telemetry, WorkerPulse
from torchloom.model.worker import LogLoss
from torchloom.wire import blackbox, codec, subjects
from torchloom.wire.blackbox import Progress, WorkerPhase

_EAGER_S = 0.005
"""How often a worker that has not stepped yet is looked at: its first step ends a recovery."""
_EAGER_FOR_NS = 300 * 10**9
"""After this long it is looked at with the pulse only: it may never step at all."""
_IDLE_S = 0.025
_STEPS_FOR_MEDIAN = 16
_WORKERS_A_MESSAGE = 16
_READINGS_A_MESSAGE = 32
_MOST_LOST = 1 << 53
"""A box is written inside the user's process: whatever it says is bounded."""
_TEXT_A_MESSAGE = 400_000
"""A pulse may carry 16 kB of metrics and 48 kB of text, a message 1 MiB."""
_AGAIN_EVERY = 20
"""Pulses after which an unchanged text is sent again, because a message may have been lost."""


async def follow_starts(host: Host) -> None:
    """Report first steps, devices and failed scripts within milliseconds, until cancelled."""
    while True:
        eager = False
        look_at_ends(host)
        for worker in host.running():
            young = time.monotonic_ns() - worker.started_ns < _EAGER_FOR_NS
            if young and not worker.first_step_told and worker.box is not None:
                eager = True
                guarded(worker, partial(look_at_start, host, worker, worker.box), None)
        await asyncio.sleep(_EAGER_S if eager else _IDLE_S)


def look_at_start(host: Host, worker: LocalWorker, box: ReadableBox) -> None:
    """Say the worker's devices and its first step, if they are new."""
    if box.closed:
        return
    _look_at_device(host, worker, box)
    stepped = bool(box.progress(Progress.STEPS))
    paused = not stepped and box.progress(Progress.PHASE) == blackbox.WorkerPhase.PAUSED
    if worker.first_step_told or not (stepped or paused):
        return
    worker.first_step_told = True
    at_ns = box.progress(Progress.FIRST_STEP_NS) or box.progress(Progress.STEP_ENDED_NS)
    if paused:
        at_ns = box.progress(Progress.PHASE_SINCE_NS)
    event = FirstStep(
        node=host.node,
        ref=worker.ref,
        at_ns=box.wall_ns(at_ns),
        training_step=box.training_step,
        paused=paused,
    )
    host.reporter.say(event, f"{worker.event_stem}.first-step")


def _look_at_device(host: Host, worker: LocalWorker, box: ReadableBox) -> None:
    version = box.view.blob_version(blackbox.DEVICE)
    if version == worker.device_version or version & 1:
        return
    devices = host.devices.told(box.json(blackbox.DEVICE))
    if host.devices.gpus and all(d.kind == "cpu" for d in devices) and not box.progress(Progress.STEPS):
        return  # CUDA may not be initialised yet: before its first step a worker cannot know better
    worker.device_version = version
    if devices and host.devices.gpus and all(d.kind == "cpu" for d in devices):
        # It computes on the CPU, and the GPU that was chosen for it is still kept for it.
        devices = tuple(d for d in worker.devices if d.kind == "gpu") + devices
    if devices:
        worker.devices = devices
        event = WorkerRegistered(node=host.node, ref=worker.ref, devices=devices)
        host.reporter.say(event, f"{worker.event_stem}.device.{version}")


async def beat(host: Host, bus: Bus) -> None:
    """Send telemetry and bound the logs, until cancelled."""
    sent: dict[tuple[str, str], DeviceReading] = {}
    while True:
        pulses = [
            found
            for worker in host.running()
            if (found := guarded(worker, partial(_look, host, worker), None)) is not None
        ]
        # Also with no worker that can be read: it is the node's heartbeat.
        for part in portions(pulses):
            telemetry = Telemetry(
                node=host.node,
                session=host.session,
                at_ns=time.time_ns(),
                epoch=host.epoch,
                workers=tuple(part),
                devices=_new_readings(host, sent),
            )
            await bus.publish(subjects.telemetry(host.node), codec.encode(telemetry))
        await asyncio.sleep(pulse_every_s(host.fleet_nodes))


def _new_readings(host: Host, sent: dict[tuple[str, str], DeviceReading]) -> tuple[DeviceReading, ...]:
    """Measurements of devices that were not sent yet, some at a time."""
    new = [key for key, reading in host.readings.items() if sent.get(key) is not reading][
        :_READINGS_A_MESSAGE
    ]
    sent.update((key, host.readings[key]) for key in new)
    return tuple(host.readings[key] for key in new)


def _look(host: Host, worker: LocalWorker) -> WorkerPulse:
    """Everything that is looked at with each heartbeat."""
    host.log_watch.follow(worker.log)
    times.note(worker.log)
    files.bound(worker.log, host.log_limit)
    if worker.box is not None:
        look_at_start(host, worker, worker.box)
        look_at_saves(host, worker, worker.box, time.monotonic_ns())
        look_at_store_values(host, worker, worker.box)
    found = pulse_of(worker, time.monotonic_ns())
    codec.encode(found)  # what cannot be sent must not keep the others' from being sent
    return found


def look_at_store_values(host: Host, worker: LocalWorker, box: ReadableBox) -> None:
    """Report once that the worker ignored foreign values in its job's store."""
    if not worker.foreign_values_told and not box.closed and box.progress(Progress.STORE_VALUES_IGNORED):
        worker.foreign_values_told = True
        event = StoreValuesIgnored(node=host.node, ref=worker.ref)
        host.reporter.say(event, f"{worker.event_stem}.store-values")


def log_lost(box: ReadableBox) -> LogLoss | None:
    lines, bytes_ = box.progress(Progress.LOG_LOST_LINES), box.progress(Progress.LOG_LOST_BYTES)
    return LogLoss(min(lines, _MOST_LOST), min(bytes_, _MOST_LOST)) if bytes_ else None


def portions(pulses: list[WorkerPulse]) -> list[list[WorkerPulse]]:
    """What goes into one message each; at least one, because it is the node's heartbeat too."""
    parts: list[list[WorkerPulse]] = [[]]
    text = 0
    for pulse in pulses:
        more = len(pulse.settings) + len(pulse.hyperparameters)
        if parts[-1] and (len(parts[-1]) >= _WORKERS_A_MESSAGE or text + more > _TEXT_A_MESSAGE):
            parts.append([])
            text = 0
        parts[-1].append(pulse)
        text += more
    return parts


def pulse_of(worker: LocalWorker, now_ns: int) -> WorkerPulse:
    """The state of one worker at `now_ns`."""
    box = worker.box
    if box is None or box.closed:
        alive_s = (now_ns - worker.started_ns) / 1e9
        return WorkerPulse(
            ref=worker.ref,
            pid=worker.pid,
            steps=0,
            step_s=0.0,
            idle_s=alive_s,
            phase="unknown",
            phase_s=alive_s,
        )
    since_ns = box.progress(Progress.PHASE_SINCE_NS) or worker.began_ns
    active_ns = box.progress(Progress.LAST_ACTIVITY_NS) or worker.began_ns
    name = box.view.read_blob(blackbox.PHASE_NAME) or b""
    collective, under_way_s = _collective(box, now_ns)
    return WorkerPulse(
        ref=worker.ref,
        pid=worker.pid,
        steps=box.progress(Progress.STEPS),
        step_s=_step_s(box),
        idle_s=_seconds(now_ns - active_ns),
        phase=words.phase_name(box.progress(Progress.PHASE), name.decode("utf-8", "replace")),
        phase_s=_seconds(now_ns - since_ns),
        training_step=box.training_step,
        total_steps=box.progress(Progress.TOTAL_STEPS) or None,
        data_wait_s=box.progress(Progress.DATA_WAIT_NS) / 1e9,
        collectives=box.progress(Progress.COLLECTIVES_ENTERED),
        collective=collective,
        in_collective_s=under_way_s,
        recorder=words.recorder_name(box.progress(Progress.RECORDER)),
        metrics=numbers(box.json(blackbox.METRICS)),
        log_lost=log_lost(box),
        copy_trouble=worker.copy_trouble,
        hyperparameters=_news(worker.hyper, box, blackbox.HYPERPARAMETERS),
        settings=_news(worker.settings, box, blackbox.SETTINGS),
        offset=box.offset,
        config_version=box.progress(Progress.CONFIG_VERSION),
    )


def rank_steps(worker: LocalWorker, now_ns: int) -> RankSteps:
    """How far one worker is at `now_ns`, to the fraction of a step."""
    box, rank = worker.box, worker.ref.rank
    if box is None or box.closed:
        return RankSteps(rank, 0, 0.0, 0.0)
    since_s = _seconds(now_ns - box.progress(Progress.STEP_ENDED_NS))
    paused = box.progress(Progress.PHASE) == WorkerPhase.PAUSED
    return RankSteps(rank, box.progress(Progress.STEPS), _step_s(box), since_s, paused)


def _step_s(box: ReadableBox) -> float:
    recent = [step.step_ns for step in box.view.steps(_STEPS_FOR_MEDIAN) if step.step_ns]
    return median(recent) / 1e9 if recent else 0.0


def _collective(box: ReadableBox, now_ns: int) -> tuple[str, float]:
    newest = box.newest_collective()
    if newest is None:
        return "", 0.0
    text = words.collective(newest, box.view.groups())
    return text, _seconds(now_ns - newest.entered_ns) if is_under_way(newest) else 0.0


def _seconds(ns: int) -> float:
    return max(0.0, ns / 1e9)


def numbers(found: object) -> dict[str, float]:
    """The numeric metrics of a METRICS blob; NaN and infinities (text in JSON) are kept, they are news."""
    values = found.get("values") if isinstance(found, dict) else None
    if not isinstance(values, dict):
        return {}
    odd = ("NaN", "Infinity", "-Infinity")
    return {str(k): float(v) for k, v in values.items() if isinstance(v, int | float) or v in odd}


def _news(told: ToldText, box: ReadableBox, blob: blackbox.Blob) -> str:
    """As the probe wrote it, when it changed, and now and then for a weaver that came later."""
    version = box.view.blob_version(blob)
    told.age += 1
    if version == told.version and told.age < _AGAIN_EVERY:
        return ""
    data = box.view.read_blob(blob)
    if data is None:
        return ""
    told.version, told.age = version, 0
    try:
        json.loads(data or b"{}")
    except ValueError:
        return ""
    return data.decode()
