"""Environments of jobs. They may hold secrets, so they are kept apart from events and never shown.

Every submission has its own object, named by an id that is in the event of the submission: two submissions of
one job name can never see each other's values, in whatever order they arrive, and a value that was read once
stays right. Jobs that were submitted before there were ids are found by their name.
"""

from __future__ import annotations

import msgspec

from torchloom.bus.protocol import Bus
from torchloom.errors import BusUnavailable
from torchloom.model.fleet import Job

_REMEMBERED = 256


class Environments:
    """A store of environment variables by submission, in the bus's private object store."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._cache: dict[str, dict[str, str]] = {}

    async def put(self, env_id: str, env: dict[str, str]) -> None:
        await self._bus.put_object(f"env.{env_id}", msgspec.msgpack.encode(env))
        self._remember(env_id, env)

    async def get(self, job: Job | None) -> dict[str, str]:
        """Raises BusUnavailable rather than let a job start without the variables it was submitted with."""
        if job is None:
            return {}  # deleted meanwhile
        name = job.env_id or job.id
        if name not in self._cache:
            data = await self._bus.get_object(f"env.{name}")
            if data is None and job.spec.env_names:
                raise BusUnavailable(f"the environment of {job.id} is not in the object store")
            self._remember(name, msgspec.msgpack.decode(data, type=dict[str, str]) if data else {})
        return self._cache[name]

    async def forget(self, env_id: str) -> None:
        self._cache.pop(env_id, None)
        await self._bus.delete_object(f"env.{env_id}")

    def _remember(self, name: str, env: dict[str, str]) -> None:
        while len(self._cache) >= _REMEMBERED:
            del self._cache[next(iter(self._cache))]
        self._cache[name] = env
