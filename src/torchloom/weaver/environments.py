"""Environments of jobs. They may hold secrets, so they are kept apart from events and never shown."""

from __future__ import annotations

import msgspec

from torchloom.bus.protocol import Bus


class Environments:
    """A store of environment variables by job, in the bus's private object store."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._cache: dict[str, dict[str, str]] = {}

    async def put(self, job: str, env: dict[str, str]) -> None:
        await self._bus.put_object(f"env.{job}", msgspec.msgpack.encode(env))
        self._cache[job] = env

    async def get(self, job: str) -> dict[str, str]:
        if job not in self._cache:
            data = await self._bus.get_object(f"env.{job}")
            self._cache[job] = msgspec.msgpack.decode(data, type=dict[str, str]) if data else {}
        return self._cache[job]

    async def forget(self, job: str) -> None:
        """Overwrite the values; the name may stay."""
        self._cache.pop(job, None)
        await self._bus.put_object(f"env.{job}", msgspec.msgpack.encode({}))
