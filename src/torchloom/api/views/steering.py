"""Operations, config and history of a job as API models. Pure: a function of what the fleet holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torchloom.api.schemas.steering import (
    ChangePlanView,
    ConfigView,
    DifferenceView,
    EntryView,
    HistoryView,
    OperationView,
    PlaceView,
    SettingView,
)
from torchloom.api.views import jobs
from torchloom.core.config import schedule
from torchloom.core.config.overrides import OWN, mode_of
from torchloom.core.config.settings import parse_address
from torchloom.core.placement.drain import stored
from torchloom.core.steering.versions import Versions, versions_of
from torchloom.model import steering
from torchloom.model.fleet import Job
from torchloom.model.steering import OperationRecord
from torchloom.model.transaction.config import Entry, Schedule
from torchloom.model.transaction.messages import Changed, Kind


def plan_view(job: str, plan: steering.ChangePlan) -> ChangePlanView:
    return ChangePlanView(
        job=job,
        operation=plan.operation,
        dry_run=not plan.operation,
        differences=differences((d.address, d.before, d.after) for d in plan.differences),
        at_step=plan.at_step,
        notes=list(plan.notes),
    )


def operation_view(job: Job, record: OperationRecord) -> OperationView:
    versions = versions_of(job)
    saved, unsaved = stored(job, record) if record.kind is Kind.CHECKPOINT else ("", "")
    return OperationView(
        id=record.id,
        job=job.id,
        number=record.version,
        version=_made(record, versions),
        kind=record.kind.value,
        state=record.state,
        ended=record.ended,
        reason=record.reason,
        values=sayable(record.values),
        by=record.by,
        why=record.why,
        asked_at_ns=record.asked_at_ns,
        ended_at_ns=record.ended_at_ns,
        generation=record.generation,
        at_step=record.at_step or None,
        training_step=record.training_step,
        attempts=record.attempts,
        changed=differences(record.changed),
        differing={str(rank): differences(changed) for rank, changed in record.differing.items()},
        trouble={str(rank): text for rank, text in record.trouble.items()},
        raised=list(record.raised),
        unheard=list(record.unheard),
        reverts=_went_back(record, versions),
        saved=saved,
        unsaved=unsaved,
    )


def config_view(job: Job, config: steering.KnownConfig, pulses: jobs.Pulses) -> ConfigView:
    held = {place.address: place for place in config.held}
    step = jobs.next_step(pulses)
    in_force = config.schedule if step is None else schedule.in_force(config.schedule, step)
    void = schedule.superseded(config.schedule)
    versions = versions_of(job)
    return ConfigView(
        job=job.id,
        version=jobs.config_version(job, pulses),
        paused=config.paused,
        known=config.live,
        optimizers=list(config.optimizers),
        settings=[_setting(setting, held, in_force, versions) for setting in config.settings],
        schedule=[entry_view(entry, entry in in_force, void, versions) for entry in config.schedule],
        operations=[operation_view(job, r) for r in job.operations.values() if not r.ended],
    )


def _setting(
    setting: steering.KnownSetting,
    held: dict[str, steering.HeldView],
    in_force: Schedule,
    versions: Versions,
) -> SettingView:
    places = []
    for address, value in setting.places:
        rule = held.get(address)
        places.append(
            PlaceView(
                address=address,
                value=sayable(value),
                mode=rule.mode if rule else None,
                own=sayable(rule.own) if rule else None,
                version=_set_by(address, in_force, versions),
            )
        )
    return SettingView(
        name=setting.name,
        type=setting.type,
        allowed=setting.allowed,
        optional=setting.optional,
        minimum=setting.minimum,
        maximum=setting.maximum,
        below=setting.below,
        choices=list(setting.choices),
        count=setting.count,
        description=setting.description,
        places=places,
    )


def _set_by(address: str, in_force: Schedule, versions: Versions) -> int | None:
    """The version that set the value of a place, if a change set it."""
    place, found = parse_address(address), None
    for entry in sorted(in_force, key=lambda entry: entry.version):
        for text, word in entry.values.items():
            if parse_address(text).covers(place):
                found = None if mode_of(word) == OWN else versions[entry.version]
    return found


def entry_view(entry: Entry, in_force: bool, superseded: Mapping[int, int], versions: Versions) -> EntryView:
    return EntryView(
        version=versions[entry.version],
        step=entry.step,
        values=sayable(dict(entry.values)),
        before=sayable(dict(entry.before)),
        by=entry.by,
        why=entry.why,
        at_ns=entry.at_ns,
        in_force=in_force,
        superseded_by=versions.get(superseded.get(entry.version, 0)),
    )


def history(job: Job) -> list[HistoryView]:
    """Every known change of settings, in the order in which people asked: from its operation, or from the
    schedule if the operation is too old to be kept."""
    records = {r.version: r for r in job.operations.values() if r.kind is Kind.SET and r.version}
    entries = {entry.version: entry for entry in job.schedule}
    void = schedule.superseded(job.schedule)
    versions = versions_of(job)
    return [
        _of_record(records[number], entries.get(number), versions.get(void.get(number, 0)), versions)
        if number in records
        else _of_entry(entries[number], versions.get(void.get(number, 0)), versions)
        for number in sorted({*records, *entries})
    ]


def _made(record: OperationRecord, versions: Versions) -> int:
    """The version that an operation made; records of earlier releases do not say it themselves."""
    return record.config_version or (versions.get(record.version, 0) if record.kind is Kind.SET else 0)


def _went_back(record: OperationRecord, versions: Versions) -> int | None:
    return record.reverts and versions.get(record.reverts, 0)


def _of_record(
    record: OperationRecord, entry: Entry | None, superseded_by: int | None, versions: Versions
) -> HistoryView:
    return HistoryView(
        version=_made(record, versions),
        operation=record.id,
        state=record.state,
        reason=record.reason,
        step=entry.step if entry else record.training_step,
        values=sayable(record.values),
        changed=differences(record.changed),
        by=record.by,
        why=record.why,
        at_ns=record.ended_at_ns or record.asked_at_ns,
        reverts=_went_back(record, versions),
        in_force=entry is not None,
        superseded_by=superseded_by,
    )


def _of_entry(entry: Entry, superseded_by: int | None, versions: Versions) -> HistoryView:
    return HistoryView(
        version=versions[entry.version],
        operation="",
        state="applied",
        reason="",
        step=entry.step,
        values=sayable(dict(entry.values)),
        changed=[],
        by=entry.by,
        why=entry.why,
        at_ns=entry.at_ns,
        reverts=None,
        in_force=True,
        superseded_by=superseded_by,
    )


def differences(changed: Iterable[Changed]) -> list[DifferenceView]:
    return [
        DifferenceView(address=address, before=sayable(before), after=sayable(after))
        for address, before, after in changed
    ]


def sayable(value: Any) -> Any:
    """The value as JSON can carry it: a number that is none becomes its name."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {str(key): sayable(part) for key, part in value.items()}
        case list() | tuple():
            return [sayable(part) for part in value]
        case _:
            return value
