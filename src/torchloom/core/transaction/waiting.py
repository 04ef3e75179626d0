"""Operations that wait for a certain step: when they are worth a try, and which step that is by now.

Steps are counted from 1 in every generation, and again after a rollback. What was asked for by its training
step is kept and counted again as soon as the ranks report their training step; what was not ends with
its generation. Owns no protocol.
"""

from __future__ import annotations

from dataclasses import replace

from torchloom.model.transaction.messages import Kind
from torchloom.model.transaction.operation import Effect, How, Operation, Outcome, Tell
from torchloom.model.transaction.state import Proposer, ProposerLimits


def is_near(state: Proposer, operation: Operation) -> bool:
    """Whether an operation is worth a try now."""
    return _is_near(state.limits, operation, state.step, state.step_ns)


def worth_telling(state: Proposer, step: int, step_s: float, offset: int | None) -> bool:
    """Whether an operation that waits now would be worth a try at that step, or could be counted."""
    if offset is not None and any(waiting.uncounted for waiting in state.queue):
        return True
    step_ns = int(step_s * 1e9) or state.step_ns
    return step > state.step and any(
        not is_near(state, waiting) and _is_near(state.limits, waiting, step, step_ns)
        for waiting in state.queue
    )


def _is_near(limits: ProposerLimits, operation: Operation, step: int, step_ns: int) -> bool:
    if operation.uncounted or step < operation.after_step:
        return False
    ahead = limits.plan_ahead_steps
    if step_ns:
        ahead = max(ahead, int(limits.plan_ahead_s * 1e9 / step_ns))
    return operation.at_step is None or operation.at_step - step <= ahead


def count_anew(state: Proposer, effects: list[Effect]) -> None:
    """A generation began: no step that was named is known in it yet."""
    for at, operation in reversed(list(enumerate(state.queue))):
        if operation.at_step is None and not operation.uncounted:
            continue
        if operation.training_step is not None:
            state.queue[at] = replace(operation, uncounted=True, after_step=0)
            continue
        del state.queue[at]
        why = f"generation {state.generation} began and counts anew: it has no step {operation.at_step}"
        effects.append(Tell(Outcome(operation.version, How.NOT_APPLIED, why)))


def count(state: Proposer, step: int, offset: int | None, effects: list[Effect]) -> None:
    """The ranks are about to make this step, `offset` less than its training step: find those named."""
    if offset is None:
        return
    for operation in [waiting for waiting in state.queue if waiting.uncounted]:
        assert operation.training_step is not None
        at = state.queue.index(operation)
        at_step = operation.training_step - offset
        if at_step >= step:
            state.queue[at] = replace(operation, at_step=at_step, uncounted=False)
            continue
        del state.queue[at]
        named, now = operation.training_step, step + offset
        why = f"step {named} is past: generation {state.generation} is at step {now}"
        effects.append(Tell(Outcome(operation.version, How.NOT_APPLIED, why, state.generation)))


def rolled_back(state: Proposer, done: Operation, outcome: Outcome) -> None:
    """Training steps are made again from here on: what waits for one waits longer."""
    if done.kind is not Kind.RESTORE or outcome.how is not How.APPLIED:
        return
    for at, operation in enumerate(state.queue):
        if operation.training_step is None or operation.uncounted:
            continue
        if outcome.offset is None:
            state.queue[at] = replace(operation, uncounted=True)
        else:
            state.queue[at] = replace(operation, at_step=operation.training_step - outcome.offset)


def is_kept(state: Proposer) -> bool:
    """Whether the operation in progress, which fails because ranks ended, is for the next generation."""
    return bool(state.gone) and state.current is not None and state.current.training_step is not None
