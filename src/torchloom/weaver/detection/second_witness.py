"""Asks torch's Flight Recorder about a hang, once, and reports what it says beside the detector's verdict.

Where no backend listens (gloo) the agents say so at once and nothing is reported. Nothing waits for the
answer: what is done about the hang is decided without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from torchloom.bus.protocol import Bus
from torchloom.core.flight.agreement import witness
from torchloom.core.flight.analysis import analyze
from torchloom.core.policy.findings import stuck_incident
from torchloom.errors import LoomError
from torchloom.model.events import WitnessAnswered
from torchloom.model.findings import Finding
from torchloom.model.fleet import Fleet, Job, WorkerState
from torchloom.model.messages import AskDumps, DumpsAnswer, RankDump
from torchloom.weaver.detection.evidence import MOST_RANKS, by_node
from torchloom.wire import codec, subjects

log = logging.getLogger(__name__)

ANSWER_WITHIN_S = 6.0
"""NCCL looks at its pipe once a second."""
_REPORTED_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.2


async def question(
    bus: Bus,
    fleet: Callable[[], Fleet],
    say: Callable[[WitnessAnswered], Awaitable[None]],
    job: Job,
    finding: Finding,
) -> None:
    """Ask all ranks, compare with the finding, and report it once the hang itself is reported."""
    id, generation = job.id, job.generation
    workers = [w for w in job.workers if w.state is not WorkerState.EXITED]
    try:
        # Of a large job those to blame first, then some of the others.
        chosen = sorted(workers, key=lambda w: w.ref.rank not in finding.ranks)[:MOST_RANKS]
        shares = by_node(chosen)
        questions = {node: AskDumps(refs=refs, within_s=ANSWER_WITHIN_S) for node, refs in shares.items()}
        answers = await asyncio.gather(*(_ask(bus, node, one) for node, one in questions.items()))
        told = [one for answer in answers for one in answer]
        dumps = [one.dump for one in told if one.dump is not None]
        if not dumps:
            return
        written = {one.rank: one.written_ns for one in told if one.dump is not None}
        found = analyze(dumps, written, asked=[w.ref.rank for w in chosen])
        event = WitnessAnswered(job=id, generation=generation, witness=witness(finding, found))
        for _ in range(int(_REPORTED_WITHIN_S / _LOOK_EVERY_S)):
            if stuck_incident(fleet(), id, generation) is not None:
                await say(event)
                return
            await asyncio.sleep(_LOOK_EVERY_S)
    except LoomError as error:
        log.info("what the Flight Recorder says of %s is lost: %s", id, error)


async def _ask(bus: Bus, node: str, query: AskDumps) -> tuple[RankDump, ...]:
    try:
        answer = await bus.request(subjects.query(node), codec.encode(query), timeout_s=ANSWER_WITHIN_S + 2)
        found: DumpsAnswer = codec.decode_dumps_answer(answer)
        return found.ranks
    except LoomError as error:
        log.info("no Flight Recorder dumps from %s: %s", node, error)
    except codec.DecodeError as error:
        log.warning("Flight Recorder dumps from %s cannot be read: %s", node, error)
    return ()
