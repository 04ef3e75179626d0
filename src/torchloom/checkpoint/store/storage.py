"""The seam to a checkpoint store, and the choice of the store that a URI and the environment mean.

Owns the protocol every store fills, whichever it is. Knows nothing about checkpoints. Every method raises
`StorageFailed` when the store refuses and `CheckpointMissing` when the object does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchloom.errors import UsageError

Bytes = bytes | bytearray | memoryview
OBJECT_SCHEMES = ("s3", "gs", "az")
_TRUE = {"1", "true", "yes", "on"}


@dataclass(frozen=True, slots=True)
class Stored:
    """One object in a listing."""

    key: str
    size: int
    modified_s: float
    """By the store's own clock."""


class Storage(Protocol):
    """A store of whole objects under slash-separated keys.

    A put that returned is durable and whole. A put that raised may have happened or not, or happen a little
    later; an object is never seen half written.
    """

    @property
    def where(self) -> str:
        """The store in words, for people. Never a password."""

    @property
    def reads_at_once(self) -> int:
        """How many parts of an object are best read at the same time."""

    def put(self, key: str, chunks: Iterable[Bytes]) -> None:
        """Write an object, replacing any. Large objects come in chunks that are not kept."""

    def put_new(self, key: str, data: bytes) -> bool:
        """Write a small object only if there is none of that key; False if there is one.

        True may also mean that an equal one is there: a remote store cannot know it from our own, repeated
        after a lost answer. Who must be the only one puts something unique into it.
        """

    def get(self, key: str) -> bytes:
        """A small object, whole."""

    def read_scattered(self, key: str, start: int, buffers: Sequence[memoryview]) -> int:
        """Fill the buffers, one after another, with the object's bytes from `start` on; how many there were,
        less only at its end."""

    def list(self, prefix: str) -> list[Stored]:
        """All objects whose key begins with `prefix`, which ends with a slash."""

    def delete(self, key: str) -> None:
        """Remove an object; nothing happens if there is none."""

    def size(self, key: str) -> int | None:
        """The object's size, or None if there is none."""


def check_key(key: str) -> str:
    """A key that cannot lead out of the root. Raises UsageError."""
    parts = key.split("/")
    if not key or "\0" in key or "\\" in key or any(part in ("", ".", "..") for part in parts):
        raise UsageError(f"{key!r} is not a key of a checkpoint store")
    return key


def open_storage(uri: str, env: Mapping[str, str]) -> Storage:
    """The store that a URI means: a directory, `file://`, `s3://bucket/prefix`, `gs://`, `az://`.

    With USE_S3 set, a plain directory name means a prefix of the same name in S3_BUCKET, so that a job
    moves to S3 by its environment alone. S3_ENDPOINT, S3_ACCESS_KEY and S3_SECRET_KEY say how to get there;
    without them, the variables of the cloud's own tools (AWS_*, GOOGLE_*, AZURE_*) count.
    """
    scheme, separator, rest = uri.partition("://")
    if separator and scheme == "file":
        uri, separator = rest, ""
    if not separator and env.get("USE_S3", "").strip().lower() in _TRUE:
        bucket = env.get("S3_BUCKET", "").strip()
        if not bucket:
            raise UsageError("USE_S3 is set but S3_BUCKET is not", hint="set S3_BUCKET to the bucket's name")
        prefix = "/".join(part for part in re.split(r"[/\\]", uri) if part not in ("", ".", ".."))
        scheme, separator, uri = "s3", "://", f"s3://{bucket}/{prefix}"
    if not separator:
        from torchloom.checkpoint.store.local import LocalStorage

        if not uri:
            raise UsageError("no checkpoint directory is given", hint="set CHECKPOINT_DIR")
        return LocalStorage(uri)
    if scheme not in OBJECT_SCHEMES:
        raise UsageError(
            f"{scheme}:// is not a kind of checkpoint store", hint="use a directory, s3://, gs:// or az://"
        )
    from torchloom.checkpoint.store.objects import ObjectOptions, ObjectStorage

    return ObjectStorage(uri, ObjectOptions.from_environment(env))
