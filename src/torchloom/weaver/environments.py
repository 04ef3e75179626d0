"""Environments of jobs. They may hold secrets, so they are kept apart from events, encrypted, and never
shown.

Every submission has its own object, named by an id that is in the event of the submission: two submissions
of one job name can never see each other's values, in whatever order they arrive, and a value that was read
once stays right. Each object is encrypted (XSalsa20-Poly1305, PyNaCl) with a key of its own, which is never
in the bus and is deleted with the job (job_keys.py). Jobs that were submitted before there were ids are
found by their name. Those submitted before there were keys were stored plain; the weaver that leads encrypts
them after its start.

With the environment goes the job's secret for its c10d store, of which each generation gets its own
(wire/store_values.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from torchloom.bus.protocol import Bus
from torchloom.errors import BusUnavailable, LoomError
from torchloom.model.fleet import Fleet, Job
from torchloom.model.job import JobSpec
from torchloom.weaver.job_keys import IN_MEMORY, JobKeys

_REMEMBERED = 256
_PREFIX = "env."
_ENCRYPTED = b"LOOMENV1"
"""How an encrypted object begins. A plain one begins with a map of msgpack, which this is not."""
SWEEP_AFTER_S = 60.0
"""What belongs to no job is deleted if that is still so after this time: a submission stores its environment
before it is an event, and another weaver may be in between."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptEnvironment:
    """What is kept of one submission."""

    env: dict[str, str]
    secret: bytes = b""


class _Stored(msgspec.Struct):
    """The same, as it is before it is encrypted."""

    env: dict[str, str]
    secret: bytes


class Environments:
    """A store of environment variables by submission, in the bus's private object store."""

    def __init__(self, bus: Bus, keys: JobKeys | None = None) -> None:
        self._bus = bus
        self._keys: JobKeys = keys if keys is not None else IN_MEMORY
        self._cache: dict[str, KeptEnvironment] = {}

    async def add(self, env: dict[str, str], beside: Job | None = None) -> str:
        """Keep it under a new id, which is returned."""
        env_id = uuid.uuid4().hex
        await self.put(env_id, env, beside)
        return env_id

    async def put(self, env_id: str, env: dict[str, str], beside: Job | None = None) -> None:
        """`beside`: another replica of the same torchft job. They share the secret: their nodes prove to each
        other that they belong to that job."""
        secret = await self.secret(beside) if beside is not None else b""
        kept = KeptEnvironment(env, secret or secrets.token_bytes(32))
        try:
            box = SecretBox(self._keys.make(env_id))
        except OSError as error:
            raise BusUnavailable(
                f"no key for the job's environment can be stored ({error.strerror})"
            ) from error
        plain = msgspec.msgpack.encode(_Stored(kept.env, kept.secret))
        await self._bus.put_object(_PREFIX + env_id, _ENCRYPTED + bytes(box.encrypt(plain)))
        self._remember(env_id, kept)

    async def get(self, job: Job | None) -> dict[str, str]:
        """Raises BusUnavailable rather than let a job start without the variables it was submitted with."""
        return (await self._get(job)).env if job is not None else {}  # None: deleted meanwhile

    async def secret(self, job: Job) -> bytes:
        """Of the job's store; empty for a job from before there was one."""
        return (await self._get(job)).secret

    async def _get(self, job: Job) -> KeptEnvironment:
        name = job.env_id or job.id
        if name not in self._cache:
            data = await self._bus.get_object(_PREFIX + name)
            if data is None and job.spec.env_names:
                raise BusUnavailable(f"the environment of {job.id} is not in the object store")
            self._remember(name, self._open(job.id, name, data) if data else KeptEnvironment({}))
        return self._cache[name]

    def _open(self, job: str, name: str, data: bytes) -> KeptEnvironment:
        key = self._keys.get(name)
        if key is None and data.startswith(_ENCRYPTED):
            key = self._keys.get(_temporary(name))
        if key is None and data.startswith(_ENCRYPTED):
            raise BusUnavailable(f"the key of the environment of {job} is not on this host")
        try:
            if key is None:
                return KeptEnvironment(msgspec.msgpack.decode(data, type=dict[str, str]))
            if not data.startswith(_ENCRYPTED):
                raise ValueError("it is not encrypted, and it was")
            plain = SecretBox(key).decrypt(data[len(_ENCRYPTED) :])
            stored = msgspec.msgpack.decode(plain, type=_Stored)
        except (CryptoError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise BusUnavailable(f"the environment of {job} in the object store is damaged") from error
        return KeptEnvironment(stored.env, stored.secret)

    async def encrypt_plain(self, fleet: Fleet) -> int:
        """Encrypt what was stored before there were keys; how many were. Killed anywhere, nothing is lost:
        the key has another name until the object is encrypted, and a plain object is read without a key."""
        done = 0
        for name in sorted({job.env_id or job.id for job in fleet.jobs.values()}):
            if self._keys.get(name) is not None:
                continue
            data = await self._bus.get_object(_PREFIX + name)
            if not data:
                continue
            try:
                if not data.startswith(_ENCRYPTED):
                    env = msgspec.msgpack.decode(data, type=dict[str, str])
                    self._keys.forget(_temporary(name))
                    box = SecretBox(self._keys.make(_temporary(name)))
                    plain = msgspec.msgpack.encode(_Stored(env, b""))
                    await self._bus.put_object(_PREFIX + name, _ENCRYPTED + bytes(box.encrypt(plain)))
                    done += 1
                if self._keys.get(_temporary(name)) is not None:
                    self._keys.rename(_temporary(name), name)
            except (OSError, msgspec.MsgspecError, RecursionError) as error:
                log.warning("the environment %s cannot be encrypted: %s", name, error)
        return done

    async def forget(self, env_id: str) -> None:
        """The key first: whatever becomes of the object, nobody can read it from here on."""
        self._cache.pop(env_id, None)
        self._keys.forget(env_id)
        self._keys.forget(_temporary(env_id))
        await self._bus.delete_object(_PREFIX + env_id)

    async def sweep(self, fleet: Callable[[], Fleet], leads: Callable[[], bool]) -> None:
        """Delete once, some time after the start, what a crash left behind: objects and keys without a
        job."""
        while not leads():
            await asyncio.sleep(1.0)
        try:
            if encrypted := await self.encrypt_plain(fleet()):
                log.info("%d environments that were stored plain are encrypted now", encrypted)
            before = await self._orphans(fleet())
            if not before:
                return
            await asyncio.sleep(SWEEP_AFTER_S)
            for name in before & await self._orphans(fleet()):
                if leads():
                    log.info("deleting environment %s, which belongs to no job", name)
                    await self.forget(name)
        except LoomError as error:
            log.info("environments without a job are left for the next start: %s", error)

    async def _orphans(self, fleet: Fleet) -> set[str]:
        stored = {name.removeprefix(_PREFIX) for name in await self._bus.object_names(_PREFIX)}
        wanted = {job.env_id or job.id for job in fleet.jobs.values()}
        return (stored | set(self._keys.names())) - wanted - {_temporary(name) for name in wanted}

    def _remember(self, name: str, kept: KeptEnvironment) -> None:
        while len(self._cache) >= _REMEMBERED:
            del self._cache[next(iter(self._cache))]
        self._cache[name] = kept


def replica_beside(fleet: Fleet, spec: JobSpec) -> Job | None:
    """Another replica of its torchft job, if there is one."""
    if spec.replica is None:
        return None
    name = spec.replica.set
    others = (job for job in fleet.jobs.values() if job.spec.replica is not None)
    return next((job for job in others if job.spec.replica and job.spec.replica.set == name), None)


def submitted_with(spec: JobSpec, key: str, job: str) -> str:
    """What it is submitted one by one with: replicas of a torchft job take the secret of the one before."""
    if spec.replica is not None:
        return f"replicas of {spec.replica.set}"
    return f"key {key}" if key else f"job {job}"


def _temporary(name: str) -> str:
    """The name of a key while its object is being encrypted."""
    return f"being-encrypted-{hashlib.sha256(name.encode()).hexdigest()[:40]}"
