"""The agents' connections to a lighthouse or a relay: a line of JSON is a request, and one is its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from torchloom.agent.lighthouse.records import ControlReply, ControlRequest


class ControlSocket:
    """`do` carries a request out."""

    def __init__(self, do: Callable[[ControlRequest], Awaitable[ControlReply]]) -> None:
        self._do = do
        self._agents: set[asyncio.StreamWriter] = set()
        self.used_s = time.monotonic()
        """When an agent last asked, or left."""

    @property
    def connected(self) -> bool:
        return bool(self._agents)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._agents.add(writer)
        try:
            while line := await reader.readline():
                self.used_s = time.monotonic()
                try:
                    reply = await self._do(msgspec.json.decode(line, type=ControlRequest))
                except (msgspec.MsgspecError, OSError, RuntimeError) as error:
                    reply = ControlReply(failed=str(error))
                writer.write(msgspec.json.encode(reply) + b"\n")
                await writer.drain()
        except OSError:
            pass  # that agent is gone; the next one connects
        finally:
            self._agents.discard(writer)
            self.used_s = time.monotonic()
            writer.close()

    def close(self) -> None:
        for writer in self._agents:
            writer.close()  # their handlers then end by themselves
