"""What follows from the newest telemetry of a job's workers: settings, steps, and a view of the config.

Telemetry is lossy and a little old: it is enough to refuse invalid requests, and the ranks check again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torchloom.core.config.box_codec import known, unpack_settings
from torchloom.core.config.settings import (
    HYPERPARAMETERS,
    MAX_STEPS,
    SHARES,
    Address,
    KnownSettings,
    Setting,
    parse_address,
)
from torchloom.core.transaction.waiting import worth_telling
from torchloom.model.events import StepReached
from torchloom.model.fleet import Fleet, Job
from torchloom.model.messages import WorkerPulse
from torchloom.model.steering import HeldView, KnownConfig, KnownSetting
from torchloom.weaver.live_view import LiveView

log = logging.getLogger(__name__)


def known_of(pulses: Mapping[int, WorkerPulse]) -> KnownSettings | None:
    """What can be set, from the lowest rank that has reported; the other ranks refuse what they lack."""
    for rank in sorted(pulses):
        pulse = pulses[rank]
        if not pulse.settings:
            continue
        try:
            return known(unpack_settings(pulse.settings), pulse.hyperparameters)
        except ValueError as error:  # it was written inside the user's process
            log.warning("settings of rank %d cannot be read: %s", rank, error)
    return None


def before_the_start(wanted: Mapping[str, object]) -> KnownSettings:
    """No rank has reported yet: accept any param group, as long as the setting's name is known."""
    places = [parse_address(name) for name in wanted]
    optimizers = 1 + max((p.optimizer or 0 for p in places), default=0)
    groups = 1 + max((p.group or 0 for p in places), default=0)
    group: dict[str, object] = dict.fromkeys(HYPERPARAMETERS)
    return KnownSettings([[group] * groups] * optimizers, (MAX_STEPS,))


def steps_of(job: Job, pulses: Mapping[int, WorkerPulse]) -> int | None:
    """Steps that the foremost rank has made; None unless every rank is known to step or to be paused."""
    told = [pulses.get(rank) for rank in range(len(job.workers))]
    if not told or any(pulse is None or not (pulse.steps or pulse.phase == "paused") for pulse in told):
        return None
    return max(pulse.steps for pulse in pulses.values())


def steps_near(fleet: Fleet, live: LiveView) -> list[StepReached]:
    """Steps worth publishing, because an operation waits for them."""
    found = []
    for job in fleet.jobs.values():
        if job.control.queue and job.control.current is None and job.control.step:
            pulses = live.pulses(fleet, job.id)
            steps, step_s, offset = steps_of(job, pulses), step_s_of(pulses), offset_of(pulses)
            if steps is not None and worth_telling(job.control, steps + 1, step_s, offset):
                found.append(
                    StepReached(
                        job=job.id, generation=job.generation, step=steps + 1, step_s=step_s, offset=offset
                    )
                )
    return found


def hears(pulses: Mapping[int, WorkerPulse]) -> bool:
    """Whether every rank with telemetry takes part in steering: a rank that does reports its settings."""
    return bool(pulses) and all(pulse.settings for pulse in pulses.values())


def told_all(pulses: Mapping[int, WorkerPulse]) -> bool:
    """Whether every rank of a stepping job has reported its settings and those of its optimizers, which
    agents repeat at different times."""
    return hears(pulses) and all(pulse.hyperparameters for pulse in pulses.values())


def shares_now(pulses: Mapping[int, WorkerPulse]) -> str | None:
    """How the ranks share a batch; None where the script's loader cannot share it in another way."""
    known = known_of(pulses)
    value = known.values.get(SHARES) if known is not None else None
    return value if isinstance(value, str) else None


def offset_of(pulses: Mapping[int, WorkerPulse]) -> int | None:
    """Training step minus step; None if the ranks report none, or different ones."""
    told = {pulse.offset for pulse in pulses.values()}
    return told.pop() if len(told) == 1 else None


def last_step(pulses: Mapping[int, WorkerPulse]) -> int | None:
    """The last training step made; None when the script reports none."""
    return max((p.training_step for p in pulses.values() if p.training_step is not None), default=None)


def step_s_of(pulses: Mapping[int, WorkerPulse]) -> float:
    return max((pulse.step_s for pulse in pulses.values()), default=0.0)


def config_view(job: Job, pulses: Mapping[int, WorkerPulse]) -> KnownConfig:
    found = known_of(pulses)
    if found is None:
        return KnownConfig(schedule=job.schedule, paused=job.paused)
    held = tuple(
        HeldView(address, one.value, "scale" if one.mode == "scale" else "hold", one.own)
        for address, one in found.held.items()
    )
    return KnownConfig(
        settings=(*_hyperparameters(found), *(_declared(s, found) for s in found.declared)),
        held=held,
        schedule=job.schedule,
        paused=job.paused,
        live=True,
        optimizers=tuple(found.classes),
    )


def _hyperparameters(found: KnownSettings) -> list[KnownSetting]:
    places: dict[str, list[tuple[str, object]]] = {}
    for number, optimizer in enumerate(found.optimizers):
        for at, group in enumerate(optimizer):
            for name in HYPERPARAMETERS:
                if name in group:
                    address = str(Address(name, number, at))
                    places.setdefault(name, []).append((address, group[name]))
    return [_view(HYPERPARAMETERS[name], tuple(where)) for name, where in places.items()]


def _declared(setting: Setting, found: KnownSettings) -> KnownSetting:
    return _view(setting, ((setting.name, found.values.get(setting.name)),))


def _view(setting: Setting, places: tuple[tuple[str, object], ...]) -> KnownSetting:
    return KnownSetting(
        name=setting.name,
        type=str(setting.type),
        allowed=setting.allowed(),
        description=setting.description,
        places=places,
        optional=setting.optional,
        minimum=setting.minimum,
        maximum=setting.maximum,
        below=setting.below,
        choices=setting.choices,
        count=setting.count,
    )
