"""The weaver's side of a transaction: proposes one operation of a job at a time until its outcome is known.

`apply(state, event, now_ns) -> effects` like the rest of the core; the state is plain data, so a replay of
the events brings a new weaver to the same place. It decides nothing about the training: it may say CONFIRM
once all ranks are armed, and it may withdraw, and then it reports what the ranks say they did. Nothing here
sends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from torchloom.core.transaction import waiting
from torchloom.core.transaction.lead import foreseen, longer, steps_ahead
from torchloom.core.transaction.outcome import judge
from torchloom.model.transaction.messages import BETWEEN, FINAL, Answer, Kind, Mail, Phase, Proposal, Said
from torchloom.model.transaction.operation import (
    Answered,
    Cancelled,
    Effect,
    Event,
    GenerationBegan,
    How,
    JobEnded,
    Operation,
    Outcome,
    Progressed,
    RankEnded,
    Requested,
    Send,
    Tell,
    Ticked,
)
from torchloom.model.transaction.state import Proposer, Round

QUEUE_LIMIT = 64


_MAIL = {Round.PREPARING: Phase.PREPARE, Round.ARMING: Phase.ARM, Round.CONFIRMED: Phase.CONFIRM}
_AWAITED = {
    Round.PREPARING: frozenset({Said.PREPARED}),
    Round.ARMING: frozenset({Said.ARMED}),
    Round.CONFIRMED: FINAL,
}


def apply(state: Proposer, event: Event, now_ns: int) -> list[Effect]:
    """Change `state` by one event."""
    effects: list[Effect] = []
    match event:
        case Requested():
            _requested(state, event.operation, now_ns, effects)
        case Cancelled():
            _cancelled(state, event, now_ns, effects)
        case Answered():
            _answered(state, event.answer, now_ns, effects)
        case RankEnded():
            _rank_ended(state, event, now_ns, effects)
        case GenerationBegan():
            _generation_began(state, event, now_ns, effects)
        case JobEnded():
            _everybody_gone(state, event.why, now_ns, effects)
            state.over = event.why
            for operation in state.queue:
                effects.append(
                    Tell(Outcome(operation.version, How.NOT_APPLIED, f"the job ended: {event.why}"))
                )
            state.queue.clear()
        case Progressed():
            if event.generation == state.generation:
                state.step = max(state.step, event.step)
                state.step_ns = event.step_ns or state.step_ns
                waiting.count(state, event.step, event.offset, effects)
        case Ticked():
            _ticked(state, now_ns, effects)
        case _:
            assert_never(event)
    _begin_next(state, now_ns, effects)
    return effects


def wake_at_ns(state: Proposer) -> int | None:
    """When a Ticked is due; None: only an event can change anything."""
    if state.current is None:
        return None
    due = [state.sent_ns + _ns(state.limits.resend_s)] if state.limits.resend_s else []
    if state.stage is not Round.CONFIRMED:
        due.append(state.since_ns + state.patience_ns)
    elif state.reported_ns:
        due.append(state.reported_ns + state.patience_ns)
    return min(due, default=None)


def reserve_version(state: Proposer) -> int:
    """Reserve the number of an operation for a change that the ranks need not agree on."""
    state.newest += 1
    return state.newest


# -- the queue ----------------------------------------------------------------------------------


def _requested(state: Proposer, operation: Operation, now_ns: int, effects: list[Effect]) -> None:
    if operation.version <= state.newest:
        return  # doubled
    state.newest = operation.version
    state.step_ns = operation.step_ns or state.step_ns
    if operation.position:
        state.position, state.position_ns, state.pace_ns = operation.position, now_ns, operation.step_ns
    refusal = ""
    if state.over:
        refusal = f"the job ended: {state.over}"
    elif len(state.queue) >= QUEUE_LIMIT:
        refusal = f"{QUEUE_LIMIT} changes wait already"
    if refusal:
        effects.append(Tell(Outcome(operation.version, How.NOT_APPLIED, refusal)))
    elif operation.kind is Kind.STOP:
        state.queue.insert(0, operation)  # what else was asked for does not matter to a job that is to end
        if state.current is not None and state.stage is not Round.CONFIRMED:
            _give_up(state, "the job is to stop", now_ns, effects, certain=True)
    else:
        state.queue.append(operation)


def _cancelled(state: Proposer, event: Cancelled, now_ns: int, effects: list[Effect]) -> None:
    why = event.why or f"cancelled by {event.by}"
    for operation in state.queue:
        if operation.version == event.version:
            state.queue.remove(operation)
            effects.append(Tell(Outcome(operation.version, How.NOT_APPLIED, why)))
            return
    if state.current is None:
        return
    if state.current.version == event.version and (event.why or not state.parts):
        state.current = replace(state.current, training_step=None)  # not for the next generation either
        _give_up(state, why, now_ns, effects, certain=True)
    elif state.stage is not Round.CONFIRMED and event.version in {part.version for part in state.parts}:
        # Only one of several was cancelled: the others start again without it.
        _withdraw(state, why, effects, unconfirmed=True)
        effects.append(Tell(Outcome(event.version, How.NOT_APPLIED, why, state.generation)))
        _requeue(state, [part for part in state.parts if part.version != event.version])


def _begin_next(state: Proposer, now_ns: int, effects: list[Effect]) -> None:
    """Start the first operation that is due, if there is a whole generation to ask."""
    if state.current is not None or state.gone or not state.world:
        return
    if state.limits.await_first_step and not state.step:
        return
    due = [operation for operation in state.queue if waiting.is_near(state, operation)]
    if not due:
        return
    first = due[0]
    if first.at_step is not None:  # not the one that was asked for first, but the one that is due first
        first = min((o for o in due if o.at_step is not None), key=lambda o: o.at_step or 0)
    planned = [o.version for o in state.queue if o.at_step is not None]
    parts = waiting.together(first, [o for o in state.queue if o.at_step is None], planned)
    state.queue = [one for one in state.queue if one not in parts]
    state.current = parts[-1] if len(parts) == 1 else waiting.share(parts)
    state.parts = [] if len(parts) == 1 else parts
    state.tries = 0
    _try(state, now_ns, effects)


def _requeue(state: Proposer, operations: list[Operation]) -> None:
    """End the attempt without an outcome; these come next."""
    state.queue[:0] = operations
    _close(state)


# -- one operation ------------------------------------------------------------------------------


def _try(state: Proposer, now_ns: int, effects: list[Effect]) -> None:
    state.attempt, state.tries = state.attempt + 1, state.tries + 1
    state.withdrawn, state.reported_ns = "", 0
    state.at_step = foreseen(state, now_ns)
    state.guessed = bool(state.at_step) + (state.guessed if state.tries > 1 else 0)
    _enter(state, Round.ARMING if state.at_step else Round.PREPARING, now_ns, effects)


def _enter(state: Proposer, stage: Round, now_ns: int, effects: list[Effect]) -> None:
    state.stage, state.since_ns, state.answers = stage, now_ns, {}
    _send(state, now_ns, effects)


def _send(state: Proposer, now_ns: int, effects: list[Effect]) -> None:
    """Send the mail to the ranks that have not answered, the first time or again."""
    assert state.current is not None
    state.sent_ns = now_ns
    if state.withdrawn:
        _withdraw(state, state.withdrawn, effects, unconfirmed=False)
        return
    reason = f"operation {state.current.version} is {state.stage}"
    for rank in state.silent():
        mail = Mail(_MAIL[state.stage], _proposal(state), state.at_step)
        effects.append(Send(state.generation, rank, mail, reason))


def _withdraw(state: Proposer, why: str, effects: list[Effect], *, unconfirmed: bool) -> None:
    mail = Mail(Phase.WITHDRAW, _proposal(state), state.at_step, unconfirmed)
    for rank in range(state.world):
        reported = state.stage is Round.CONFIRMED and rank in state.answers
        if rank not in state.gone and not reported:
            effects.append(Send(state.generation, rank, mail, why))


def _proposal(state: Proposer) -> Proposal:
    assert state.current is not None
    return Proposal(
        attempt=state.attempt_id,
        kind=state.current.kind,
        values=state.current.values,
        two_phase=state.current.two_phase,
        control_timeout_ns=_ns(state.limits.control_timeout_s),
        vote_timeout_ns=_ns(state.current.vote_timeout_s),
    )


def _answered(state: Proposer, answer: Answer, now_ns: int, effects: list[Effect]) -> None:
    if state.current is None or answer.attempt != state.attempt_id or not 0 <= answer.rank < state.world:
        return
    state.step = max(state.step, answer.step - (state.current.kind in BETWEEN))
    state.step_ns = answer.step_ns or state.step_ns
    state.position, state.position_ns = float(answer.step), 0 if answer.held else now_ns - state.trip_ns // 2
    state.offset = answer.offset
    if state.stage is Round.CONFIRMED:
        if answer.said in FINAL and answer.rank not in state.answers:
            state.answers[answer.rank] = answer
            state.reported_ns = state.reported_ns or now_ns
            _end_if_known(state, now_ns, effects)
    elif answer.said in _AWAITED[state.stage]:
        state.answers[answer.rank] = answer
        if len(state.answers) == state.world:
            _all_answered(state, now_ns, effects)
    elif answer.said in (Said.TOO_LATE, Said.NOT_APPLIED):
        _try_again(state, f"rank {answer.rank}: {answer.why}", now_ns, effects)
    elif answer.said in FINAL:
        _give_up(state, f"rank {answer.rank} {answer.said}: {answer.why}", now_ns, effects)


def _all_answered(state: Proposer, now_ns: int, effects: list[Effect]) -> None:
    assert state.current is not None
    wanted, answers = state.current.at_step, list(state.answers.values())
    newest = max(answer.step for answer in answers)
    state.trip_ns = longer(state.trip_ns, now_ns - state.since_ns, state.pace_ns or state.step_ns)
    if len({answer.anchor for answer in answers}) > 1:
        counted = ", ".join(f"rank {a.rank}: {a.anchor}" for a in sorted(answers, key=lambda a: a.rank))
        _give_up(state, f"the ranks do not count the same steps ({counted})", now_ns, effects, certain=True)
        return
    held = all(answer.held for answer in answers)
    if state.stage is Round.ARMING:
        if state.at_step > newest and any(answer.held for answer in answers):
            # Armed at once, for a step that paused ranks do not come to.
            _try_again(state, "the job is paused", now_ns, effects)
        else:
            _enter(state, Round.CONFIRMED, now_ns, effects)
        return
    if wanted is not None and wanted < newest:
        why = f"step {state.named(wanted)} is past, the job is at step {state.named(newest)}"
        _give_up(state, why, now_ns, effects, certain=True)
        return
    if wanted is not None and held and wanted > newest:
        # The resume that must come first could not get past an operation that waits for a later step.
        _withdraw(state, f"the job is paused before step {state.named(wanted)}", effects, unconfirmed=True)
        state.queue.append(replace(state.current, after_step=newest + 1))
        _close(state)
        return
    took_s = (now_ns - state.since_ns) / 1e9
    failed, pace_s = state.tries - 1 - state.guessed, state.pace_ns / 1e9
    lead = 0 if held else steps_ahead(answers, took_s, failed, pace_s, state.trip_ns / 1e9)
    state.at_step = wanted if wanted is not None else newest + lead
    _enter(state, Round.ARMING, now_ns, effects)


def _try_again(state: Proposer, why: str, now_ns: int, effects: list[Effect]) -> None:
    """The attempt failed because it came too late."""
    assert state.current is not None
    if state.current.at_step is not None or state.tries >= state.limits.tries:
        _give_up(state, f"{why} ({state.tries} tries)", now_ns, effects, certain=True)
        return
    if state.stage is not Round.CONFIRMED:
        _withdraw(state, why, effects, unconfirmed=True)
    _try(state, now_ns, effects)


def _give_up(state: Proposer, why: str, now_ns: int, effects: list[Effect], *, certain: bool = False) -> None:
    """Withdraw. Before CONFIRM that is the end of it; after it the ranks have the last word.

    Unless it is `certain` that each would fail alike, operations that were tried together are tried alone.
    """
    assert state.current is not None
    if state.stage is Round.CONFIRMED:
        state.withdrawn = state.withdrawn or why
        _withdraw(state, why, effects, unconfirmed=False)
        return
    _withdraw(state, why, effects, unconfirmed=True)
    if waiting.is_kept(state):
        _requeue(state, [state.current])
        return
    if state.parts and not certain:
        _requeue(state, [replace(part, alone=True) for part in state.parts])
        return
    for part in state.parts or [state.current]:
        outcome = Outcome(part.version, How.NOT_APPLIED, why, state.generation, attempts=state.tries)
        effects.append(Tell(outcome))
    _close(state)


def _end_if_known(state: Proposer, now_ns: int, effects: list[Effect], *, patient: bool = True) -> None:
    """Record the outcome once every rank has reported or ended, or after giving up on the missing ones."""
    assert state.current is not None
    if patient and state.silent():
        return
    verdict = judge(state.answers, state.world, state.at_step, state.gone, state.withdrawn)
    more = state.current.at_step is None and state.tries < state.limits.tries
    if verdict.again and more and not state.withdrawn:
        _try_again(state, verdict.reason, now_ns, effects)
        return
    if verdict.undone and state.parts:
        _requeue(state, [replace(part, alone=True) for part in state.parts])
        return
    if verdict.how is How.NOT_APPLIED and not verdict.undone and waiting.is_kept(state):
        _requeue(state, [state.current])
        return
    outcome = verdict.outcome(state.attempt_id, state.at_step, state.tries)
    waiting.rolled_back(state, state.current, outcome)
    effects.extend(Tell(waiting.part_of(outcome, part)) for part in state.parts)
    if not state.parts:
        effects.append(Tell(outcome))
    _close(state)


def _close(state: Proposer) -> None:
    state.current, state.parts, state.stage, state.answers, state.withdrawn = None, [], Round.IDLE, {}, ""


def _ticked(state: Proposer, now_ns: int, effects: list[Effect]) -> None:
    if state.current is None:
        return
    patience_ns = state.patience_ns
    if state.stage is not Round.CONFIRMED and now_ns - state.since_ns >= patience_ns:
        silent = state.silent()
        who = f"rank{'s' * (len(silent) > 1)} {', '.join(map(str, silent))}"
        why = f"{who} did not answer within {patience_ns / 1e9:g} s"
        _give_up(state, why, now_ns, effects, certain=True)
    elif state.reported_ns and now_ns - state.reported_ns >= patience_ns:
        _end_if_known(state, now_ns, effects, patient=False)
    elif state.limits.resend_s and now_ns - state.sent_ns >= _ns(state.limits.resend_s):
        _send(state, now_ns, effects)


# -- ranks that end -----------------------------------------------------------------------------


def _rank_ended(state: Proposer, event: RankEnded, now_ns: int, effects: list[Effect]) -> None:
    if event.generation != state.generation or event.rank in state.gone:
        return
    for answer in event.answers:
        if answer.said in FINAL:
            _answered(state, answer, now_ns, effects)
    state.gone[event.rank] = event.why
    if state.current is None:
        return
    if state.stage is not Round.CONFIRMED:
        why = f"rank {event.rank} ended before the decision: {event.why}"
        _give_up(state, why, now_ns, effects, certain=True)
    elif not state.silent():
        _end_if_known(state, now_ns, effects)
    elif event.rank not in state.answers:
        why = f"rank {event.rank} ended before it reported the outcome: {event.why}"
        _give_up(state, why, now_ns, effects, certain=True)


def _generation_began(state: Proposer, event: GenerationBegan, now_ns: int, effects: list[Effect]) -> None:
    if event.generation <= state.generation:
        return
    _everybody_gone(state, f"generation {event.generation} began", now_ns, effects)
    state.generation, state.world, state.gone = event.generation, event.world, {}
    state.step, state.offset = 0, None
    state.over = ""  # a job that had ended may be begun again
    state.attempt, state.position_ns = 0, 0
    waiting.count_anew(state, effects)


def _everybody_gone(state: Proposer, why: str, now_ns: int, effects: list[Effect]) -> None:
    """No process of this generation is left; reports that are still missing will never come."""
    for rank in range(state.world):
        state.gone.setdefault(rank, why)
    if state.current is not None and state.stage is Round.CONFIRMED:
        _end_if_known(state, now_ns, effects)
    elif state.current is not None:
        _give_up(state, f"the generation ended before the decision: {why}", now_ns, effects, certain=True)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
