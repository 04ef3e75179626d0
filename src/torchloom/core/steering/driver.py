"""Steering a job: events of the stream to its proposer; what that wants to the outbox, timers and records.

The protocol itself is core/transaction; what an outcome means beyond the job's records (a stop that was not
applied …) is in consequences.py. All mail of one moment to one node is one effect, which stays open until a
newer one, an outcome that every rank reported, or the end of the generation makes it needless.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from torchloom.core.scattered import any_of
from torchloom.core.steering import shared
from torchloom.core.steering.operations import (
    end_record,
    is_shared,
    note_progress,
    open_record,
    schedule_change,
    superseded_plans,
)
from torchloom.core.transaction.packing import pack_mail, unpack_answers, unpack_mail
from torchloom.core.transaction.proposer import apply, reserve_version, wake_at_ns
from torchloom.core.turn import Turn
from torchloom.model.effects import PostMail
from torchloom.model.events import ChangeCancelled, ChangeRequested, RanksAnswered, StepReached, WorkerExited
from torchloom.model.fleet import Job, JobState, Worker
from torchloom.model.steering import OperationRecord
from torchloom.model.timers import TimerKind
from torchloom.model.transaction.messages import Answer, Kind, Mail, post
from torchloom.model.transaction.operation import (
    Answered,
    Cancelled,
    Event,
    GenerationBegan,
    JobEnded,
    Operation,
    Progressed,
    RankEnded,
    Requested,
    Send,
    Tell,
    Ticked,
)
from torchloom.model.worker import WorkerRef

MAIL_OPEN_NS = 30 * 10**9
"""How long mail that needs no answer stays open: ranks that wait for it give up long before."""
AWAY = frozenset({JobState.WAITING, JobState.BACKOFF, JobState.RECOVERING})
"""No worker of the next generation has been started yet."""
VOTE_TIMEOUT_S = {Kind.SET: 10.0, Kind.CHECKPOINT: 60.0, Kind.RESTORE: 300.0}
"""Handlers and checkpoints may take their time; ranks wait this long for the slowest of them."""


# -- what people want ---------------------------------------------------------------------------


def change_requested(turn: Turn, event: ChangeRequested) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is None:
        return
    if event.kind is Kind.RESUME and job.spec.replica is not None:  # they were paused together
        for one in shared.replicas_of(turn.fleet, job.spec.replica.set):
            if one is not job:
                _change_requested(turn, one, event)
    _change_requested(turn, job, event)


def _change_requested(turn: Turn, job: Job, event: ChangeRequested) -> None:
    if event.operation in job.operations:
        return
    record = OperationRecord(
        id=event.operation,
        version=0,
        kind=event.kind,
        values=event.values,
        by=event.by,
        why=event.why,
        at_step=event.at_step,
        training_step=event.training_step,
        generation=job.generation,
        reverts=event.reverts,
        origin=event.origin,
        incident=event.incident,
    )
    if is_shared(job, record):
        shared.request(turn, job, record)
        return
    if event.kind is Kind.SET and job.state is JobState.WAITING and not job.started_at_ns:
        _before_the_start(turn, job, record)
        return
    if event.kind is Kind.RESUME and job.paused and job.state in AWAY:
        _before_the_restart(turn, job, record)
        return
    operation = Operation(
        version=0,
        kind=event.kind,
        values=event.values,
        two_phase=event.two_phase,
        at_step=event.at_step,
        training_step=event.training_step if event.at_step is not None else None,
        vote_timeout_s=VOTE_TIMEOUT_S.get(event.kind, 5.0),
        step_ns=int(event.step_s * 1e9),
        position=event.position if event.generation == job.generation else 0.0,
    )
    meanwhile = event.at_step is not None and event.generation != job.generation
    if meanwhile and event.training_step is not None:
        operation, meanwhile = replace(operation, uncounted=True), False
    request(turn, job, record, operation)
    if meanwhile:
        why = f"generation {job.generation} began meanwhile and counts anew"
        feed(turn, job, Cancelled(record.version, event.by, why))


def _before_the_start(turn: Turn, job: Job, record: OperationRecord) -> None:
    """No rank has to agree yet: every worker will be given the schedule."""
    record.version = reserve_version(job.control)
    open_record(turn, job, record)
    step = record.training_step or 0
    schedule_change(turn, job, record, step)
    record.state, record.ended_at_ns = "applied", turn.now_ns
    where = f"step {step}" if step else "the first step"
    record.reason = f"the job has not started: it holds from {where} on"


def _before_the_restart(turn: Turn, job: Job, record: OperationRecord) -> None:
    """No rank is there to be resumed: the next generation starts unpaused."""
    record.version = reserve_version(job.control)
    open_record(turn, job, record)
    job.paused = False
    record.state, record.ended_at_ns = "applied", turn.now_ns
    record.reason = f"the job is {job.state}: it continues without a pause"


def request(turn: Turn, job: Job, record: OperationRecord, operation: Operation) -> None:
    """Put an operation into the queue, with the next number."""
    record.version = job.control.newest + 1
    open_record(turn, job, record)
    feed(turn, job, Requested(replace(operation, version=record.version)))


def change_cancelled(turn: Turn, event: ChangeCancelled) -> None:
    job = turn.fleet.jobs.get(event.job)
    record = job.operations.get(event.operation) if job is not None else None
    if job is not None and record is not None and not record.ended:
        record.cancelled = True
        if is_shared(job, record):
            shared.withdraw(turn, job, record, event.by)
            return
        feed(turn, job, Cancelled(record.version, event.by))


# -- what ranks say and do ----------------------------------------------------------------------


def ranks_answered(turn: Turn, event: RanksAnswered) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is None or job.generation != event.generation:
        return
    for answer in _read(event.answers):
        known = 0 <= answer.rank < len(job.workers) and job.workers[answer.rank].node == event.node
        if known and answer.attempt.generation == job.generation:
            feed(turn, job, Answered(answer))


def rank_ended(turn: Turn, job: Job, event: WorkerExited) -> None:
    """A process is gone; what it had answered counts."""
    rank = event.ref.rank
    mine = tuple(answer for answer in _read(event.answers) if answer.rank == rank)
    feed(turn, job, RankEnded(event.ref.generation, rank, event.exit.describe(), mine))
    if not job.living:
        _close_mail(turn, job)
        _set_timer(turn, job)


def generation_runs(turn: Turn, job: Job) -> None:
    """Every rank of the new generation has had a process; some may have ended already."""
    feed(turn, job, GenerationBegan(job.generation, len(job.workers)))
    for worker in job.workers:
        if worker.exit is not None:
            feed(turn, job, RankEnded(job.generation, worker.ref.rank, worker.exit.describe()))


def first_step_made(turn: Turn, job: Job) -> None:
    """Once every rank steps, or waits before its first step, every rank reads mail."""
    if not job.control.step and not any_of(job.workers, lambda w: w.alive and not w.first_step_at_ns):
        feed(turn, job, Progressed(job.generation, 1 if job.paused else 2))


def step_reached(turn: Turn, event: StepReached) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is not None and job.generation == event.generation and not job.ended:
        step_ns = int(event.step_s * 1e9)
        feed(turn, job, Progressed(event.generation, event.step, step_ns, event.offset))


def job_ended(turn: Turn, job: Job) -> None:
    feed(turn, job, JobEnded(job.reason))
    shared.replica_ended(turn, job)
    job.paused = False
    _close_mail(turn, job)
    _set_timer(turn, job)


def mail_failed(turn: Turn, effect: PostMail, why: str) -> None:
    """An agent cannot reach a mailbox: the operation cannot be carried out on all ranks."""
    job = turn.fleet.jobs.get(effect.job)
    if job is None or job.generation != effect.generation or job.control.current is None:
        return
    feed(turn, job, Cancelled(job.control.current.version, effect.node, f"{effect.node}: {why}"))


def time_passed(turn: Turn, job: Job) -> None:
    if job.control.current is None:
        _close_mail(turn, job)
    feed(turn, job, Ticked())


# -- to the proposer and back -------------------------------------------------------------------


def feed(turn: Turn, job: Job, event: Event) -> None:
    before = _where(job)
    effects = apply(job.control, event, turn.now_ns)
    heard_all = True
    for effect in effects:
        if isinstance(effect, Tell):
            ended = end_record(turn, job, effect.outcome)
            heard_all = heard_all and ended is not None and ended.state == "applied" and not ended.unheard
            if ended is not None:
                turn.ended_operations.append((job.id, ended.id))
    sends = [effect for effect in effects if isinstance(effect, Send)]
    if sends:
        _post(turn, job, sends)
    elif effects and heard_all and job.control.current is None:
        _close_mail(turn, job)
    if any(isinstance(effect, Tell) for effect in effects):
        for version, by in superseded_plans(job).items():
            feed(turn, job, Cancelled(version, "", f"superseded by operation {by}, requested later"))
    if before != _where(job) or isinstance(event, Requested):
        note_progress(job)
    if sends or not isinstance(event, RankEnded) or turn.timer(TimerKind.STEER, job) is not None:
        _set_timer(turn, job)
    elif (at_ns := wake_at_ns(job.control)) is not None and not job.ended:
        turn.set_timer_at(TimerKind.STEER, job, at_ns)


def _where(job: Job) -> tuple[object, ...]:
    control = job.control
    current = control.current.version if control.current is not None else 0
    waiting = tuple((operation.version, operation.uncounted) for operation in control.queue)
    there = control.generation, bool(control.gone), bool(control.step)
    return current, control.stage, control.attempt, waiting, there


def _read(answers: str) -> tuple[Answer, ...]:
    """They were written inside the user's process: unreadable answers are ignored."""
    try:
        return unpack_answers(answers.encode())
    except ValueError:
        return ()


# -- mail ---------------------------------------------------------------------------------------


def _post(turn: Turn, job: Job, sends: list[Send]) -> None:
    """One effect per node with all that its ranks' mailboxes must hold now."""
    mails: dict[str, tuple[Mail, ...]] = {}
    refs: dict[str, dict[WorkerRef, None]] = {}
    for send in sends:
        worker = _addressee(job, send)
        if worker is not None:
            box = mails.get(worker.node, ())
            mails[worker.node] = box if send.mail in box else post(box, send.mail)
            refs.setdefault(worker.node, {})[worker.ref] = None
    older = [e for e in turn.open_of(job.id) if isinstance(e, PostMail) and e.node in refs]
    for effect in older:
        if effect.generation == job.generation:
            box = reduce(post, unpack_mail(effect.mail.encode()), mails[effect.node])
            mails[effect.node] = box
            refs[effect.node] |= dict.fromkeys(r for r in effect.workers if job.workers[r.rank].alive)
        turn.close(effect.id)
    for node, workers in refs.items():
        turn.want(
            PostMail(
                id=turn.next_effect_id(),
                cause=turn.seq,
                reason=sends[-1].reason,
                node=node,
                job=job.id,
                generation=job.generation,
                workers=tuple(workers),
                mail=pack_mail(mails[node]).decode(),
            )
        )


def _addressee(job: Job, send: Send) -> Worker | None:
    if send.generation != job.generation:
        return None
    worker = job.workers[send.rank]
    return worker if worker.alive else None


def _close_mail(turn: Turn, job: Job) -> None:
    for effect in turn.open_of(job.id):
        if isinstance(effect, PostMail):
            turn.close(effect.id)


# -- time ---------------------------------------------------------------------------------------


def _set_timer(turn: Turn, job: Job) -> None:
    """One timer per job: when the proposer wants to know that time has passed, or mail is to be closed."""
    set_before = turn.timer(TimerKind.STEER, job)
    at_ns = None if job.ended else wake_at_ns(job.control)
    idle = at_ns is None and not job.ended and job.control.current is None
    if idle and any(isinstance(effect, PostMail) for effect in turn.open_of(job.id)):
        at_ns = set_before.at_ns if set_before is not None else turn.now_ns + MAIL_OPEN_NS
    if at_ns is None:
        turn.cancel_timer(TimerKind.STEER, job)
    else:
        turn.set_timer_at(TimerKind.STEER, job, at_ns)
