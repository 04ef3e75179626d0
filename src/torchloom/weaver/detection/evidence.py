"""Asks the agents of a job for evidence about a finding, all at once and within a time. Keeps nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from torchloom.bus.protocol import Bus
from torchloom.errors import LoomError
from torchloom.model.findings import Finding, RankEvidence
from torchloom.model.fleet import Job, Worker, WorkerState
from torchloom.model.messages import AskEvidence
from torchloom.model.worker import WorkerRef
from torchloom.wire import codec, subjects

log = logging.getLogger(__name__)

MOST_SUSPECTS = 8
MOST_RANKS = 64
OTHER_STACKS = 2
"""Waiting ranks whose stack is taken too: it shows where in the script the others are."""


async def gather(
    bus: Bus, workers: Sequence[Worker], finding: Finding, within_s: float, everybody: bool
) -> dict[int, RankEvidence]:
    """What the agents know of the suspects and, the first time, of the others. Late answers are left out."""
    suspects = (finding.ranks or finding.ask)[:MOST_SUSPECTS]
    others = finding.waiting[:OTHER_STACKS] if everybody else ()
    asked = _asked(workers, suspects, everybody)
    answers = await asyncio.gather(
        *(
            _ask(bus, node, AskEvidence(refs=refs, suspects=suspects, stacks=others), within_s)
            for node, refs in by_node(asked).items()
        )
    )
    return {one.rank: one for answer in answers for one in answer}


def _asked(workers: Sequence[Worker], suspects: Iterable[int], everybody: bool) -> list[Worker]:
    named = frozenset(suspects)
    chosen = [w for w in workers if w.ref.rank in named]
    if everybody:
        chosen += [w for w in workers if w.ref.rank not in named][: MOST_RANKS - len(chosen)]
    return chosen


def by_node(workers: Iterable[Worker]) -> dict[str, tuple[WorkerRef, ...]]:
    shares: dict[str, list[WorkerRef]] = {}
    for worker in workers:
        shares.setdefault(worker.node, []).append(worker.ref)
    return {node: tuple(refs) for node, refs in shares.items()}


async def _ask(bus: Bus, node: str, query: AskEvidence, within_s: float) -> tuple[RankEvidence, ...]:
    try:
        answer = await bus.request(subjects.query(node), codec.encode(query), timeout_s=within_s)
        return codec.decode_evidence_answer(answer).ranks
    except LoomError as error:
        log.info("no evidence from %s: %s", node, error)
    except codec.DecodeError as error:
        log.warning("evidence from %s cannot be read: %s", node, error)
    return ()


def named(job: Job, finding: Finding) -> list[Worker]:
    """The living workers that a finding blames."""
    return [w for w in job.workers if w.ref.rank in finding.ranks and w.state is not WorkerState.EXITED]
