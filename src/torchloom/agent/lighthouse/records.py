"""What a lighthouse must remember across a restart, and the control messages between agent and lighthouse."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from torchloom.model.quorum import ReplicaChange, ReplicaOutcome, ReplicaSeat


class BeaconRecord(Struct, kw_only=True):
    """One lighthouse, as its file holds it."""

    set: str
    size: int
    min_replicas: int
    news_port: int = 0
    doors: dict[str, int] = field(default_factory=dict)
    """Port by door. A door belongs to one generation of one replica and is closed for good when that ends."""
    quorum_id: int = 0
    members: dict[str, str] = field(default_factory=dict)
    """The last quorum: door by replica id."""
    formed: bool = False
    changes: list[ReplicaChange] = field(default_factory=list)


class ControlRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    do: Literal["open", "close", "gone", "status", "change", "withdraw", "outcome"]
    door: str = ""
    version: int = 0
    values: dict[str, Any] = {}
    at_step: int = 0
    why: str = ""
    kind: str = "set"


class ControlReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    port: int = 0
    news_port: int = 0
    quorum_id: int = 0
    members: tuple[str, ...] = ()
    reason: str = ""
    outcome: ReplicaOutcome | None = None
    failed: str = ""


def door_of(job: str, generation: int) -> str:
    return f"{job}.g{generation}"


def fresh(seat: ReplicaSeat) -> BeaconRecord:
    return BeaconRecord(set=seat.set, size=seat.size, min_replicas=seat.min_replicas)


def read(path: Path) -> BeaconRecord | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=BeaconRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def write(path: Path, record: BeaconRecord) -> None:
    """As a whole or not at all."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    new.write_bytes(msgspec.json.encode(record))
    new.replace(path)
