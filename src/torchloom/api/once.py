"""An Idempotency-Key for operations on a job. Owns how a key becomes an operation's id; keeps nothing.

The id of an operation is durable with the job, so it can remember by itself which key and which request made
it: its first part is made from the key, its second from the request. That also holds when two services are
asked at the same time, because the core takes an id only once.
"""

from __future__ import annotations

import hashlib

from pydantic import BaseModel

from torchloom.errors import UsageError
from torchloom.model.fleet import Job

KEY_DIGITS, REQUEST_DIGITS = 8, 4


def operation_id(job: Job, by: str, key: str | None, body: BaseModel, name: str) -> str:
    """The operation id made from the key; empty without a key. UsageError if the key is another request's."""
    if key is None:
        return ""
    start = _digest(f"{job.id}\n{by}\n{key}")[:KEY_DIGITS]
    id = start + _digest(f"{name}\n{body.model_dump_json()}")[:REQUEST_DIGITS]
    for known in job.operations:
        if known.startswith(start) and known != id:
            raise UsageError(f"This Idempotency-Key was used for another request, operation {known}.")
    return id


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
