"""Operations that wait: when one is worth a try, at which step by now, and which are carried out together.

Steps are counted from 1 in every generation, and again after a rollback. What was requested by its training
step is kept and counted again as soon as the ranks report their training step; what was not ends with
its generation. Settings changes that wait are carried out together, so that they do not wait for each other:
the protocol sees one operation, with the newest version of them; each keeps its version and its outcome.
Owns no protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from torchloom.core.config.schedule import merge
from torchloom.core.config.settings import Address, parse_address
from torchloom.errors import UsageError
from torchloom.model.transaction.config import Entry
from torchloom.model.transaction.messages import Changed, Kind
from torchloom.model.transaction.operation import Effect, How, Operation, Outcome, Tell
from torchloom.model.transaction.state import Proposer, ProposerLimits

MOST_TOGETHER = 16
MOST_VALUES = 64
"""Mail has to fit into a mailbox."""


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


def together(
    first: Operation, waiting: Sequence[Operation], planned: Collection[int] = ()
) -> list[Operation]:
    """The operations to carry out with `first`, itself included: what directly follows it and is like it.

    `planned` are versions that wait for a later step. None may lie between those carried out together: these
    get the newest version of them on the ranks, and would wrongly count as decided after the planned one.
    """
    parts = [first]
    if not _may_join(first):
        return parts
    values = len(first.values)
    for operation in waiting[waiting.index(first) + 1 :]:
        values += len(operation.values)
        alike = _may_join(operation) and operation.two_phase == first.two_phase
        alike = alike and not any(first.version < one < operation.version for one in planned)
        if not alike or values > MOST_VALUES or len(parts) >= MOST_TOGETHER:
            break
        parts.append(operation)
    return parts


def _may_join(operation: Operation) -> bool:
    return operation.kind is Kind.SET and operation.at_step is None and not operation.alone


def share(parts: Sequence[Operation]) -> Operation:
    """One operation that does what these do one after the other."""
    entries = tuple(Entry(part.version, 0, part.values) for part in parts)
    return replace(
        parts[-1],
        values=merge(entries),
        vote_timeout_s=max(part.vote_timeout_s for part in parts),
    )


def part_of(outcome: Outcome, part: Operation) -> Outcome:
    """What the common outcome says about one of the operations."""
    mine = {rank: _covered(changed, part) for rank, changed in outcome.changed.items()}
    reason = outcome.reason
    if outcome.version != part.version:
        reason += f", together with operation {outcome.version}"
    return replace(outcome, version=part.version, reason=reason, changed=mine)


def _covered(changed: tuple[Changed, ...], part: Operation) -> tuple[Changed, ...]:
    wanted = [parse_address(text) for text in part.values]
    return tuple(c for c in changed if any(_covers(address, c[0]) for address in wanted))


def _covers(address: Address, place: str) -> bool:
    try:
        return address.covers(parse_address(place))
    except UsageError:  # a worker wrote it: anything may be in it
        return str(address) == place
