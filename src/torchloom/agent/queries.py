"""Answers queries about logs, black boxes, checkpoints and suspects. Malformed queries get empty answers."""

from __future__ import annotations

import logging
import time
from typing import assert_never

from msgspec.structs import replace

from torchloom.agent.checkpoints.catalogue import CatalogueAnswers
from torchloom.agent.host import Host
from torchloom.agent.logs import files, times
from torchloom.agent.observe import flight_recorder, words
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.observe.evidence import Samples
from torchloom.agent.observe.pulse import rank_steps
from torchloom.agent.tasks import Tasks
from torchloom.bus.protocol import Bus, Message
from torchloom.errors import UsageError
from torchloom.model.ids import check_token
from torchloom.model.messages import (
    AskCheckpoints,
    AskDumps,
    AskEvidence,
    BoxReading,
    LogPiece,
    ReadBox,
    ReadLog,
    ReadSteps,
    StepsReading,
)
from torchloom.wire import blackbox, codec
from torchloom.wire.blackbox import DTYPES, CollectiveRecord, Group, Progress, Source

log = logging.getLogger(__name__)

_MOST_RECORDS = 256


class Queries:
    def __init__(self, host: Host, bus: Bus, tasks: Tasks, samples: Samples) -> None:
        self._host = host
        self._samples = samples
        self._bus = bus
        self._tasks = tasks
        self._checkpoints = CatalogueAnswers()

    async def receive(self, message: Message) -> None:
        """Handler of the query subject."""
        try:
            query = codec.decode_query(message.data)
        except codec.DecodeError as error:
            log.warning("a query that cannot be read: %s", error)
            await self._bus.respond(message, codec.encode(BoxReading(found=False)))
            return
        if isinstance(query, AskCheckpoints):  # may take long, and must not delay the next query
            self._tasks.start(self._ask_checkpoints(message, query), f"checkpoints of {query.job}")
        elif isinstance(query, AskEvidence):
            self._tasks.start(self._ask_evidence(message, query), "evidence")
        elif isinstance(query, AskDumps):
            self._tasks.start(self._ask_dumps(message, query), "flight recorder")
        else:
            await self._bus.respond(message, codec.encode(self._answer(query)))

    async def _ask_checkpoints(self, message: Message, query: AskCheckpoints) -> None:
        await self._bus.respond(message, codec.encode(await self._checkpoints.answer(query)))

    async def _ask_evidence(self, message: Message, query: AskEvidence) -> None:
        await self._bus.respond(message, codec.encode(await self._samples.gather(query)))

    async def _ask_dumps(self, message: Message, query: AskDumps) -> None:
        await self._bus.respond(message, codec.encode(await flight_recorder.ask(self._host, query)))

    def _answer(self, query: ReadLog | ReadBox | ReadSteps) -> LogPiece | BoxReading | StepsReading:
        match query:
            case ReadLog():
                return self._read_log(query)
            case ReadBox():
                worker = self._host.workers.get(query.ref)
                if worker is None or worker.box is None or worker.box.closed:
                    return BoxReading(found=False)
                return read_box(worker.box, query.collectives, query.steps)
            case ReadSteps():
                here, now_ns = self._host.workers, time.monotonic_ns()
                return StepsReading(tuple(rank_steps(here[ref], now_ns) for ref in query.refs if ref in here))
            case _:
                assert_never(query)

    def _read_log(self, query: ReadLog) -> LogPiece:
        try:
            check_token(query.job, "job name")  # it becomes part of a path
        except UsageError:
            return LogPiece(b"", 0, 0, ended=True)
        alive = any(w.ref.job == query.job and w.ref.rank == query.rank for w in self._host.running())
        path = self._host.log_file(query.job, query.rank)
        begin = times.place(path, query.since_ns) if query.since_ns else 0
        offset = max(query.offset, begin) if query.offset >= 0 else query.offset
        piece = files.read_piece(path, offset, query.max_bytes, ended=not alive)
        if piece.offset < begin:  # the last lines reach further back than wanted
            data = piece.data[begin - piece.offset :]
            piece = LogPiece(data, piece.next_offset - len(data), piece.next_offset, 0, piece.ended)
        if piece.data:
            times.note(path)  # whatever is in the piece has a time
        return replace(
            piece,
            marks=tuple(times.marks(path, piece.offset, piece.next_offset)) if piece.data else (),
            now_ns=time.time_ns(),
            unfinished=files.unfinished(path, piece.next_offset) if query.unfinished and alive else b"",
        )


def read_box(box: ReadableBox, collectives: int, steps: int) -> BoxReading:
    """A box as plain records; times are wall-clock nanoseconds."""
    groups = box.view.groups()
    wanted = min(max(0, collectives), _MOST_RECORDS)
    expected = min(wanted, box.progress(Progress.COLLECTIVES_ENTERED), blackbox.COLLECTIVE_SLOTS)
    records = list(box.view.collectives(wanted)) if wanted else []
    kept_steps = list(box.view.steps(min(max(0, steps), _MOST_RECORDS))) if steps > 0 else []
    hyper = box.json(blackbox.HYPERPARAMETERS)
    told = box.json(blackbox.METRICS)
    metrics = told.get("values") if isinstance(told, dict) else None
    return BoxReading(
        found=True,
        collectives=[_collective(box, record, groups) for record in records],
        steps=[
            {
                "step": s.seq,
                "ended_ns": box.wall_ns(s.ended_ns),
                "step_ns": s.step_ns,
                "data_wait_ns": s.data_wait_ns,
                "collectives": s.collectives,
            }
            for s in kept_steps
        ],
        groups=[
            {"name": g.name, "size": g.size, "entered": g.entered, "finished": g.finished}
            for g in groups.values()
        ],
        hyperparameters=hyper if isinstance(hyper, dict | list) else {},
        metrics=metrics if isinstance(metrics, dict) else {},
        torn=max(0, expected - len(records)),
    )


def _collective(box: ReadableBox, record: CollectiveRecord, groups: dict[int, Group]) -> dict[str, object]:
    group = groups.get(record.group)
    return {
        "seq": record.seq,
        "op": words.op_name(record.op),
        "group": group.name if group else "",
        "group_seq": record.group_seq,
        "group_size": record.group_size,
        "bytes": record.bytes,
        "dtype": DTYPES.get(record.dtype, "unknown"),
        "peer": record.peer,
        "entered_ns": box.wall_ns(record.entered_ns),
        "finished_ns": box.wall_ns(record.finished_ns) if record.finished_ns else None,
        "source": _source(record.source),
        "asynchronous": bool(record.flags & blackbox.FLAG_ASYNC),
        "coalesced": bool(record.flags & blackbox.FLAG_COALESCED),
        "failed": bool(record.flags & blackbox.FLAG_FAILED),
    }


def _source(number: int) -> str:
    try:
        return Source(number).name.lower().replace("_", "-")
    except ValueError:
        return "unknown"
