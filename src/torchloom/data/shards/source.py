"""Where shards come from: a directory, or an object store. A source lists and streams; it keeps nothing.

obstore is imported only for a URL, and only in the fetching process (see `fetch`), never in a worker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from torchloom.errors import DataDamaged, NotFound, UsageError
from torchloom.wire.object_store import opening

CHUNK_BYTES = 4 << 20
PATIENCE_S = 180.0
"""How long a request to a store that does not answer is repeated, if LOOM_STORE_TIMEOUT does not say."""
BACKOFF = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2}


class ShardSource(Protocol):
    """What the cache and the index need to know of a place with shards."""

    def names(self) -> list[str]:
        """All files, sorted."""

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a file. Raises `NotFound` or `DataDamaged`."""

    def write(self, name: str, content: bytes) -> None:
        """Replace a small file whole."""


def is_remote(uri: str) -> bool:
    return "://" in uri and not uri.startswith("file://")


def local_root(uri: str) -> Path:
    return Path(uri.removeprefix("file://")).expanduser().absolute()


class LocalSource:
    """A directory."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise NotFound(
                f"there is no directory {root}", hint="make a dataset: python -m torchloom.data.demo DIR"
            )
        self.root = root

    def names(self) -> list[str]:
        return sorted(p.relative_to(self.root).as_posix() for p in self.root.rglob("*") if p.is_file())

    def chunks(self, name: str) -> Iterator[bytes]:
        try:
            with open(self.root / name, "rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
        except FileNotFoundError:
            raise NotFound(f"there is no {name} in {self.root}") from None
        except OSError as error:
            raise DataDamaged(f"{name} in {self.root} cannot be read ({error.strerror})") from None

    def write(self, name: str, content: bytes) -> None:
        path = self.root / name
        part = path.with_name(f".{path.name}.{os.getpid()}")
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)


class ObjectSource:
    """A prefix of an object store, by URL: s3://bucket/prefix, gs://…, az://…, http://…"""

    def __init__(self, uri: str, environment: Mapping[str, str]) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            raise UsageError(f"reading {uri} needs obstore", hint="pip install obstore") from None
        self._uri = uri
        self._obstore: Any = obstore
        self._failures = (obstore.exceptions.BaseError, OSError, ValueError)
        how = opening(uri, environment)
        options: dict[str, Any] = {"config": how.config} if how.config else {}
        if how.allow_http:
            options["client_options"] = {"allow_http": True}
        try:
            patience = timedelta(seconds=float(environment.get("LOOM_STORE_TIMEOUT") or PATIENCE_S))
        except (ValueError, OverflowError):
            raise UsageError("LOOM_STORE_TIMEOUT must be a number of seconds") from None
        options["retry_config"] = {"max_retries": 1000, "retry_timeout": patience, "backoff": BACKOFF}
        try:
            self._store: Any = from_url(uri, **options)
        except self._failures as error:
            raise UsageError(f"{uri} cannot be opened ({_first_line(error)})") from None

    def names(self) -> list[str]:
        try:
            return sorted(entry["path"] for page in self._obstore.list(self._store) for entry in page)
        except self._failures as error:
            raise self._translated(error, "the list") from None

    def chunks(self, name: str) -> Iterator[bytes]:
        try:
            for chunk in self._obstore.get(self._store, name).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)
        except self._failures as error:
            raise self._translated(error, name) from None

    def write(self, name: str, content: bytes) -> None:
        try:
            self._obstore.put(self._store, name, content)
        except self._failures as error:
            raise self._translated(error, name) from None

    def _translated(self, error: Exception, name: str) -> Exception:
        if isinstance(error, FileNotFoundError):
            return NotFound(f"there is no {name} in {self._uri}")
        return DataDamaged(
            f"{name} of {self._uri} cannot be read ({_first_line(error)})",
            hint="look at the store, its address and its keys",
        )


def open_source(uri: str, environment: Mapping[str, str]) -> ShardSource:
    """The place a dataset's URI names; for how its store is opened see wire/object_store.py."""
    return ObjectSource(uri, environment) if is_remote(uri) else LocalSource(local_root(uri))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
