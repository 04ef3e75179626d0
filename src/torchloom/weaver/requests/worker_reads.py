"""Asks a worker's agent for its log and its black box."""

from __future__ import annotations

from torchloom.bus.protocol import Bus
from torchloom.errors import NotFound
from torchloom.model.messages import BoxReading, LogPiece, ReadBox, ReadLog
from torchloom.weaver.publisher import Publisher
from torchloom.wire import codec, subjects


class WorkerReads:
    def __init__(self, bus: Bus, stream: Publisher) -> None:
        self._bus = bus
        self._stream = stream

    async def log(
        self,
        job: str,
        rank: int,
        offset: int,
        max_bytes: int,
        since_ns: int = 0,
        unfinished: bool = False,
    ) -> LogPiece:
        node = self._node_of(job, rank)
        query = ReadLog(job, rank, offset, max_bytes, since_ns, unfinished)
        return codec.decode_log_piece(await self._bus.request(subjects.query(node), codec.encode(query)))

    async def box(self, job: str, rank: int, newest: int = 32) -> BoxReading:
        node = self._node_of(job, rank)
        query = ReadBox(self._stream.job(job).workers[rank].ref, collectives=newest, steps=newest)
        return codec.decode_box_reading(await self._bus.request(subjects.query(node), codec.encode(query)))

    def _node_of(self, job: str, rank: int) -> str:
        workers = self._stream.job(job).workers
        if not 0 <= rank < len(workers):
            raise NotFound(f"Job {job} has ranks 0 to {len(workers) - 1}, there is no rank {rank}.")
        return workers[rank].node
