"""Identities: how jobs, replicas, workers, nodes and effects are named.

Ids come from users and from the network, so everything that becomes part of a path or a subject is
checked here and nowhere else.
"""

from __future__ import annotations

import re
from zlib import crc32

from torchloom.errors import UsageError

_TOKEN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def check_token(value: str, what: str) -> str:
    """Return `value` if it is safe as a path component and as a NATS subject token, else refuse it."""
    if not _TOKEN.fullmatch(value):
        shown = value if len(value) <= 40 else value[:37] + "…"
        raise UsageError(
            f"{shown!r} is not a valid {what}: use 1–63 lower-case letters, digits and inner hyphens."
        )
    return value


def token_from(text: str, default: str) -> str:
    """The nearest valid token to a free text such as a script's name."""
    cleaned = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:48].strip("-")
    return cleaned or default


def distinct_token(text: str) -> str:
    """A valid token for a name of another system, such as a pod's: different names give different tokens."""
    if _TOKEN.fullmatch(text):
        return text
    return f"{token_from(text, 'node')}-{crc32(text.encode()):08x}"


def replica_id(job: str, index: int) -> str:
    """A replica is a set of workers that share a process group and fail and restart together."""
    return f"{job}/{index}"


def worker_id(job: str, rank: int) -> str:
    """A worker is one rank of a job; its incarnation names its present process."""
    return f"{job}/rank-{rank}"
