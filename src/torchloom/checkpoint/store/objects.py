"""A checkpoint store in an object store (S3 and compatibles, Google, Azure), through obstore.

Owns the credentials it is given (they appear in no message and no repr), time limits, and the answer to
"was it created by me". Objects appear whole or not at all; a killed multipart upload leaves invisible
parts, which the bucket's own lifecycle rule removes.

**Create-only** is `If-None-Match: *`. Servers that ignore or refuse the header exist, so the first
create-only put tries it on an object of its own. Without support we look first and then put. That is
weaker: two writers of one key could both believe they were first. Every key we create belongs to one
generation of one job, whose number is given out once, and all writers of one checkpoint write the same
content, so it matters only when two runs outside torchloom take the same generation in the same instant;
`conditional` says which it is.

A timed out request may have happened or may still happen. The protocol in commit.py allows for both.
"""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torchloom.checkpoint.store.points import at
from torchloom.checkpoint.store.storage import Bytes, Stored, check_key
from torchloom.errors import CheckpointError, CheckpointMissing, StorageFailed, StoreUnreachable, UsageError
from torchloom.wire.object_store import opening

UPLOAD_CHUNK = 16 * 1024 * 1024
"""Size of one part of an upload. S3 allows 10,000 parts, so a file may have 160 GB."""
UPLOADS_AT_ONCE = 8
"""Parts in flight; with their size it bounds the memory an upload takes."""
READS_AT_ONCE = 8
"""Requests in flight while an object is read: a store is far away, or spread over many disks."""
HOLDS_OTHERS_UP = 1 << 16
"""Copies from so many bytes on give the interpreter free."""


@dataclass(frozen=True)
class ObjectOptions:
    """How to reach the store."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables that lead there (wire/object_store.py); they hold secrets."""
    request_timeout_s: float = 30.0
    """Limit of one request, a chunk of a large object at most."""
    give_up_after_s: float = 60.0
    """Failed requests are repeated until then."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> ObjectOptions:
        give_up = env.get("LOOM_STORE_TIMEOUT", "").strip()
        try:
            give_up_after_s = float(give_up) if give_up else cls.give_up_after_s
        except ValueError:
            raise UsageError(f"LOOM_STORE_TIMEOUT must be seconds, not {give_up!r}") from None
        return cls(
            env=env,
            request_timeout_s=min(cls.request_timeout_s, give_up_after_s),
            give_up_after_s=give_up_after_s,
        )


class ObjectStorage:
    """Objects under `scheme://bucket/prefix`."""

    def __init__(self, url: str, options: ObjectOptions) -> None:
        try:
            import obstore
            from obstore import exceptions
        except ImportError as error:
            raise UsageError(f"{url} needs obstore", hint="run pip install 'torchloom[s3]'") from error
        self._obstore = obstore
        self._already = exceptions.AlreadyExistsError
        self._refused = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        self._unsupported = (exceptions.NotSupportedError, NotImplementedError)
        self._error = exceptions.BaseError
        self._url = url.rstrip("/")
        self._store = self._open(options)
        self.conditional: bool | None = None
        """Does the server honour create-only puts? None until the first one."""

    reads_at_once = READS_AT_ONCE

    @property
    def where(self) -> str:
        return self._url

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        at("put.opened")
        with self._errors("write", key):
            self._obstore.put(
                self._store,
                check_key(key),
                _pieces(chunks),
                chunk_size=UPLOAD_CHUNK,
                max_concurrency=UPLOADS_AT_ONCE,
            )
        at("put.durable")

    def put_new(self, key: str, data: bytes) -> bool:
        if self.conditional is None:
            self.conditional = self._try_conditional(key)
        at("new.opened")
        with self._errors("write", key):
            if self.conditional:
                created = self._create(check_key(key), data)
            else:
                created = self.size(key) is None
                if created:
                    self._obstore.put(self._store, key, data, use_multipart=False)
        at("new.durable")
        # The client repeats a request whose answer was lost and then finds its own work.
        return created or self.get(key) == data

    def get(self, key: str) -> bytes:
        with self._errors("read", key):
            return bytes(self._obstore.get(self._store, check_key(key)).bytes())

    def read_scattered(self, key: str, start: int, buffers: Sequence[memoryview]) -> int:
        length = sum(len(buffer) for buffer in buffers)
        if not length:
            return 0
        with self._errors("read", key):
            data = self._obstore.get_range(self._store, check_key(key), start=start, length=length)
            return _deal(memoryview(data), buffers)

    def list(self, prefix: str) -> list[Stored]:
        found: list[Stored] = []
        with self._errors("list", prefix):
            for batch in self._obstore.list(self._store, prefix=check_key(prefix.rstrip("/"))):
                found += [Stored(m["path"], m["size"], m["last_modified"].timestamp()) for m in batch]
        return sorted(found, key=lambda stored: stored.key)

    def delete(self, key: str) -> None:
        with self._errors("delete", key):
            try:
                self._obstore.delete(self._store, check_key(key))
            except FileNotFoundError:
                return

    def size(self, key: str) -> int | None:
        with self._errors("read", key):
            try:
                return int(self._obstore.head(self._store, check_key(key))["size"])
            except FileNotFoundError:
                return None

    def _open(self, options: ObjectOptions) -> Any:
        from obstore.store import from_url

        how = opening(self._url, options.env)
        config: Any = how.config
        if not self._url.partition("://")[2].strip("/"):
            raise UsageError(f"{self._url} names no bucket", hint="use s3://BUCKET/PREFIX")
        try:
            return from_url(
                self._url,
                client_options={
                    "allow_http": how.allow_http,
                    "timeout": timedelta(seconds=options.request_timeout_s),
                    "connect_timeout": timedelta(seconds=min(5.0, options.request_timeout_s)),
                },
                retry_config={
                    "max_retries": 100,
                    "retry_timeout": timedelta(seconds=options.give_up_after_s),
                },
                config=config,
            )
        except (self._error, ValueError) as error:
            raise UsageError(f"{self._url} cannot be opened ({_first_line(error)})") from None

    def _create(self, key: str, data: bytes) -> bool:
        try:
            self._obstore.put(self._store, key, data, mode="create", use_multipart=False)
        except self._already:
            return False
        return True

    def _try_conditional(self, beside: str) -> bool:
        """Does a second create of one key fail? Tried on a key of our own, which is removed again."""
        key = f"{beside.partition('/')[0]}/probe-{secrets.token_hex(8)}"
        with self._errors("write", key):
            try:
                self._create(key, b"first")
                return not self._create(key, b"second")
            except self._unsupported:
                return False
            finally:
                self.delete(key)

    @contextmanager
    def _errors(self, verb: str, key: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except CheckpointError:
            raise
        except FileNotFoundError as error:
            if _no_bucket(error):
                raise self._bucket_missing(verb, key) from error
            raise CheckpointMissing(f"{self._url}/{key} does not exist") from error
        except self._refused:
            # The server's answer may quote the key id, so it is not passed on.
            raise StorageFailed(
                f"could not {verb} {self._url}/{key}, because the store refused our credentials",
                hint="check S3_ACCESS_KEY, S3_SECRET_KEY and their rights",
            ) from None
        except (self._error, OSError) as error:
            if _no_bucket(error):
                raise self._bucket_missing(verb, key) from error
            tried_s = time.monotonic() - began
            raise StoreUnreachable(
                f"could not {verb} {self._url}/{key} within {tried_s:.1f} s ({_first_line(error)})",
                hint="check S3_ENDPOINT and that the store is up",
            ) from error

    def _bucket_missing(self, verb: str, key: str) -> StorageFailed:
        bucket = self._url.partition("://")[2].partition("/")[0]
        return StorageFailed(
            f"could not {verb} {self._url}/{key}, because the store has no bucket {bucket}",
            hint="create the bucket, or correct S3_BUCKET",
        )


def _deal(data: memoryview, buffers: Sequence[memoryview]) -> int:
    """Copy into buffers, one after another; how many bytes.

    Other threads read and sum meanwhile: an assignment would keep the interpreter for as long as it takes.
    """
    at, first = 0, _address(data)
    for buffer in buffers:
        length = min(len(buffer), len(data) - at)
        if first is None or length < HOLDS_OTHERS_UP:
            buffer[:length] = data[at : at + length]
        else:
            ctypes.memmove((ctypes.c_char * length).from_buffer(buffer), first + at, length)
        at += length
    return at


def _address(data: memoryview) -> int | None:
    """Where the bytes of a read-only object are: NumPy can say it, if it is there."""
    try:
        import numpy
    except ImportError:
        return None
    return int(numpy.frombuffer(data, numpy.uint8).ctypes.data) if len(data) else None


def _no_bucket(error: BaseException) -> bool:
    """Whether the store answered that there is no such bucket: S3 and Google, Azure."""
    return any(code in str(error) for code in ("NoSuchBucket", "ContainerNotFound"))


def _pieces(chunks: Iterable[Bytes]) -> Iterator[memoryview]:
    """The chunks, none larger than a part: the client gathers small ones but does not cut large ones."""
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), UPLOAD_CHUNK):
            yield view[start : start + UPLOAD_CHUNK]
            at("put.chunk")


def _first_line(error: BaseException) -> str:
    """The cause in a few words: the client's messages run over many lines and hold whole answers."""
    text = str(error)
    for mark in ("source: ", "Source: "):
        text = text.replace(mark, "")
    return " ".join(text.splitlines()[0].split())[:200] if text else type(error).__name__
