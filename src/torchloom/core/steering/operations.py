"""The record of every operation: opened at the request, kept up to date, closed with the reported outcome.

Also what an outcome means for the job itself: its config's schedule and whether it is paused. Owns no
protocol and asks for no effect.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchloom.core.config.box_codec import pack_schedule
from torchloom.core.config.schedule import merge, roll_back, superseded
from torchloom.core.config.schedule import record as record_entry
from torchloom.core.config.settings import MAX_STEPS
from torchloom.core.recovery.incidents import lasting_hangs
from torchloom.core.steering.after_rollback import rolled_back
from torchloom.core.steering.versions import record_change
from torchloom.core.transaction.waiting import is_near
from torchloom.core.turn import Turn
from torchloom.model.fleet import Job
from torchloom.model.steering import OperationRecord, OperationState, Origin
from torchloom.model.transaction.config import Entry
from torchloom.model.transaction.messages import Changed, Kind
from torchloom.model.transaction.operation import How, Outcome
from torchloom.model.transaction.state import Round

REMEMBERED_OPERATIONS = 256
STATES: dict[Round, OperationState] = {
    Round.IDLE: "waiting",
    Round.PREPARING: "preparing",
    Round.ARMING: "arming",
    Round.CONFIRMED: "confirmed",
}
ENDS: dict[How, OperationState] = {
    How.APPLIED: "applied",
    How.NOT_APPLIED: "not applied",
    How.DIVERGED: "diverged",
}


def open_record(turn: Turn, job: Job, record: OperationRecord) -> None:
    """Keep a new operation; the oldest that have ended are forgotten."""
    record.asked_at_ns = turn.now_ns
    job.operations[record.id] = record
    surplus = len(job.operations) - REMEMBERED_OPERATIONS
    for old in [r.id for r in job.operations.values() if r.ended][: max(0, surplus)]:
        del job.operations[old]


def by_version(job: Job, version: int) -> OperationRecord | None:
    return next((r for r in reversed(job.operations.values()) if r.version == version), None)


def is_shared(job: Job, record: OperationRecord) -> bool:
    """Whether all replicas of a torchft job do this together, and not the ranks of this one alone. What a
    policy or a drain wants of one replica is its own affair: the others train on."""
    seat = job.spec.replica
    if seat is None or seat.size < 2:
        return False
    of_all = record.kind in (Kind.PAUSE, Kind.CHECKPOINT) and record.origin is Origin.PERSON
    return record.kind is Kind.SET or of_all


def note_progress(job: Job) -> None:
    """Bring the records of what has not ended in line with the proposer."""
    control = job.control
    under_way = {part.version for part in control.parts}
    if control.current is not None:
        under_way.add(control.current.version)
    for record in job.operations.values():
        if record.ended or is_shared(job, record):
            continue
        if record.version in under_way and control.stage is not Round.IDLE:
            record.state = STATES[control.stage]
            record.reason, record.attempts = control.reason, control.tries
            record.generation = control.generation
            record.at_step = control.at_step or record.at_step
            if control.at_step and control.offset is not None:
                record.training_step = control.named(control.at_step)
        else:
            record.state, record.reason = "waiting", _why_it_waits(job, record)
            if any(o.version == record.version and o.at_step is None for o in control.queue):
                record.at_step = record.training_step = None  # it was tried for a step that came to nothing


def _why_it_waits(job: Job, record: OperationRecord) -> str:
    control = job.control
    if not control.world or control.gone or control.generation != job.generation:
        return f"it waits until the job runs; it is {job.state}"
    if control.limits.await_first_step and not control.step:
        return "it waits for the first step of every rank"
    waiting = next((o for o in control.queue if o.version == record.version), None)
    if waiting is not None and waiting.uncounted:
        return f"it waits for step {waiting.training_step}; the new generation has not reported its step yet"
    if waiting is not None and waiting.at_step is not None and not is_near(control, waiting):
        named = waiting.at_step if waiting.training_step is None else waiting.training_step
        return f"it waits for step {named}, the job is at step {control.step + named - waiting.at_step}"
    if control.current is not None:
        return f"operation {control.current.version} goes first"
    return "it waits"


def end_record(turn: Turn, job: Job, outcome: Outcome) -> OperationRecord | None:
    """The recorded end of an operation; None for one that is no longer kept."""
    record = by_version(job, outcome.version)
    if record is None or record.ended:
        return None
    record.state = ENDS[outcome.how]
    record.reason, record.ended_at_ns = outcome.reason, turn.now_ns
    if outcome.how is How.NOT_APPLIED:
        # Whom a hung job waits for, and for which device, is the reason behind the reason.
        for hang in lasting_hangs(turn.fleet, job):
            record.reason += f"; the job hangs ({hang.id}): {hang.verdict}"
    record.generation, record.attempts = outcome.generation, outcome.attempts
    before = record.training_step  # as it was counted before the ranks went back, if that is what they did
    record.at_step = outcome.at_step or None
    record.training_step = None
    if outcome.at_step and outcome.offset is not None:
        record.training_step = outcome.at_step + outcome.offset
    record.changed, record.differing = _common(outcome.changed)
    record.trouble, record.raised, record.unheard = dict(outcome.trouble), outcome.raised, outcome.unheard
    if outcome.how is How.APPLIED:
        _take_effect(turn, job, record, before)
    return record


def _common(
    by_rank: Mapping[int, tuple[Changed, ...]],
) -> tuple[tuple[Changed, ...], dict[int, tuple[Changed, ...]]]:
    """What the lowest rank reported, and the ranks that reported something else."""
    if not by_rank:
        return (), {}
    common = by_rank[min(by_rank)]
    return common, {rank: changed for rank, changed in by_rank.items() if changed != common}


def _take_effect(turn: Turn, job: Job, record: OperationRecord, before: int | None) -> None:
    match record.kind:
        case Kind.PAUSE:
            job.paused = True
        case Kind.RESUME:
            job.paused = False
        case Kind.STOP:
            pass  # what is begun again, in another size or from another state, is still paused
        case Kind.SET:
            schedule_change(turn, job, record, record.training_step)
        case Kind.RESTORE:
            restored_config(job, record.values, None if before is None else before - 1)
            rolled_back(turn, job, record)
        case Kind.CHECKPOINT | Kind.PROBE:
            pass


def schedule_change(turn: Turn, job: Job, record: OperationRecord, step: int | None) -> None:
    """A change of settings is a new version of the config from its first training step on.

    Without a training step the order of versions is all that counts (core.config.schedule.begin).
    """
    newest = max((entry.step for entry in job.schedule), default=0)
    if step is None:
        step = max(newest, record.at_step or 0)
    entry = Entry(
        version=record.version,
        step=step,
        values=dict(record.values),
        before={address: before for address, before, _ in record.changed},
        by=record.by,
        why=record.why,
        at_ns=turn.now_ns,
    )
    record.config_version = record_change(job, entry)


def starting_schedule(job: Job) -> str:
    """What every worker of a generation is given; max_steps of the submission is there from the beginning."""
    first = (Entry(0, 0, {MAX_STEPS.name: job.spec.max_steps}),) if job.spec.max_steps else ()
    schedule = (*first, *job.schedule)
    return pack_schedule(schedule) if schedule else ""


def last_step(job: Job) -> int | None:
    """The job's `max_steps`, if somebody has changed it since the submission."""
    found = merge(job.schedule).get(MAX_STEPS.name)
    return found if isinstance(found, int) else None


def restored_config(job: Job, values: Mapping[str, object], today: int | None) -> None:
    """Training resumes after an earlier step on request: later versions are kept or given up.

    `today` is the last step made before, if it is known.
    """
    step, choice, version = values.get("step"), values.get("config"), values.get("config_version")
    if not isinstance(step, int):
        return
    if choice == "keep":
        note = f"kept when step {step} was restored"
        job.schedule = roll_back(job.schedule, step + 1, "keep", today=today, note=note)
    elif choice == "revert":
        used = version if isinstance(version, int) else None
        job.schedule = roll_back(job.schedule, step + 1, "revert", version=used)


def superseded_plans(job: Job) -> dict[int, int]:
    """Changes that wait for their step although every place of theirs was decided anew for an earlier one;
    and by which version. One that the ranks may be committing is left to them."""
    control = job.control
    waiting = list(control.queue)
    if control.current is not None and not control.parts and control.stage is not Round.CONFIRMED:
        waiting.append(control.current)
    found: dict[int, int] = {}
    for one in waiting:
        step = one.at_step if one.training_step is None else one.training_step
        if one.kind is Kind.SET and step is not None:
            void = superseded(record_entry(job.schedule, Entry(one.version, step, one.values)))
            if one.version in void:
                found[one.version] = void[one.version]
    return found


def sentence(job: str, record: OperationRecord) -> str:
    """The outcome of an operation, or its progress, for people."""
    by_ranks = record.state == "applied" and record.attempts  # then the reason says so itself
    said = record.reason if by_ranks else f"{record.state}, {record.reason}"
    text = f"{wanted(record)} of {job} by {record.by}: {said}"
    if record.state == "applied" and record.changed:
        text += ": " + ", ".join(
            f"{address} {before} → {after}" for address, before, after in record.changed[:8]
        )
    return text


def wanted(record: OperationRecord) -> str:
    """The operation itself in a few words."""
    made = f"version {record.config_version}" if record.config_version else f"operation {record.version}"
    return f"{asked(record.kind, record.values)} ({made})"


def asked(kind: Kind, values: Mapping[str, object]) -> str:
    if kind is Kind.RESTORE:
        return f"restore step {values.get('step')}"
    if kind is not Kind.SET:
        return str(kind)
    return "set " + " ".join(f"{name}={_short(value)}" for name, value in list(values.items())[:8])


def _short(value: object) -> str:
    if isinstance(value, dict) and len(value) == 1:
        (name, inner), *_ = value.items()
        return "own" if name == "own" else f"{name}:{inner}"
    return str(value)[:80]
