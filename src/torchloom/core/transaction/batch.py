"""Several settings changes that wait are carried out together, so that they do not wait for each other.

Each keeps its version and its outcome. Owns what may go together and how an outcome is shared out; the
protocol sees one operation, with the newest version of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from torchloom.core.config.schedule import merge
from torchloom.core.config.settings import Address, parse_address
from torchloom.errors import UsageError
from torchloom.model.transaction.config import Entry
from torchloom.model.transaction.messages import Changed, Kind
from torchloom.model.transaction.operation import Operation, Outcome

MOST_TOGETHER = 16
MOST_VALUES = 64
"""Mail has to fit into a mailbox."""


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
        reason += f", together with change {outcome.version}"
    return replace(outcome, version=part.version, reason=reason, changed=mine)


def _covered(changed: tuple[Changed, ...], part: Operation) -> tuple[Changed, ...]:
    wanted = [parse_address(text) for text in part.values]
    return tuple(c for c in changed if any(_covers(address, c[0]) for address in wanted))


def _covers(address: Address, place: str) -> bool:
    try:
        return address.covers(parse_address(place))
    except UsageError:  # a worker wrote it: anything may be in it
        return str(address) == place
