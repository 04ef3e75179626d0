"""What a lighthouse must remember across a restart, and the control messages between agent and lighthouse."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from torchloom.core.quorum import QuorumCandidate, QuorumState
from torchloom.model.quorum import (
    CutOff,
    LighthouseSite,
    LinkNotice,
    QuorumMember,
    ReplicaChange,
    ReplicaOutcome,
    ReplicaSeat,
)

CLOSED_KEPT = 256
QUORUMS_APART = 1000
"""A lighthouse that was lost may have formed quorums that only replicas lost with it have heard of. The ids
of its successor begin further on: the names of process groups are made of them."""


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
    answered: tuple[QuorumMember, ...] = ()
    """The members of the last quorum as they asked; empty if one of them has ended since."""
    outdated: dict[str, int] = field(default_factory=dict)
    """Which of them must heal, and the step that they are given (core/quorum.py)."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Why a policy leaves this replica out, by door."""
    cut_off: dict[str, CutOff] = field(default_factory=dict)
    """Replicas that cannot reach all others, by door."""
    notices: list[LinkNotice] = field(default_factory=list)
    """What this node's agent has to report of them, and has not yet."""
    noticed: int = 0
    """Number of the newest notice."""
    changes: list[ReplicaChange] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    """Doors that were closed for good, the newest last."""
    version: int = 0
    """Raised with every change of what other nodes keep, too."""
    node: str = ""
    address: str = ""
    """Where other nodes reach this one."""
    key: str = ""
    """What the lighthouse and those who relay to it know, in hexadecimal digits."""
    site: LighthouseSite | None = None
    """Where the lighthouse is; None, or this node: here."""
    gate_port: int = 0
    """Where the lighthouse serves other nodes; on one that relays, its port on the lighthouse's node."""
    owners: dict[str, str] = field(default_factory=dict)
    """Doors that another node relays for, and that node."""
    awaited: list[str] = field(default_factory=list)
    """Nodes whose records this lighthouse needs before it forms a quorum."""

    @property
    def relays(self) -> bool:
        return self.site is not None and self.site.node != self.node

    @property
    def term(self) -> int:
        return self.site.term if self.site is not None else 0


class SharedRecord(Struct, frozen=True):
    """What every node of the job keeps, so that a lost lighthouse can be replaced on any of them."""

    version: int
    quorum_id: int
    formed: bool
    members: dict[str, str]
    changes: list[ReplicaChange]
    closed: list[str]
    left_out: dict[str, str]
    cut_off: dict[str, CutOff] = {}


class ControlRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    do: Literal[
        "open",
        "close",
        "gone",
        "status",
        "change",
        "withdraw",
        "outcome",
        "leave-out",
        "take-back",
        "links",
        "move",
    ]
    door: str = ""
    version: int = 0
    values: dict[str, Any] = {}
    at_step: int = 0
    why: str = ""
    kind: str = "set"
    site: LighthouseSite | None = None


class ControlReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    port: int = 0
    news_port: int = 0
    quorum_id: int = 0
    members: tuple[str, ...] = ()
    reason: str = ""
    outcome: ReplicaOutcome | None = None
    failed: str = ""
    awaited: tuple[str, ...] = ()
    notices: tuple[LinkNotice, ...] = ()
    away: bool = False
    """The lighthouse is on another node, which is not reached, or waits for the records of others."""


class LinkMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Between a lighthouse and a node that relays to it. The first one says what the connection is for."""

    to: Literal["", "link", "door", "news"] = ""
    door: str = ""
    node: str = ""
    term: int = 0
    doors: tuple[str, ...] = ()
    """All doors of the node."""
    record: SharedRecord | None = None
    kept: int = 0
    """The version of the record that the node has on disk."""
    welcome: bool = False
    number: int = 0
    ask: ControlRequest | None = None
    reply: ControlReply | None = None
    attempt: tuple[str, ...] = ()
    """Addresses of replicas that the node is to connect to, or …"""
    tried: int = 0
    """… the number of an attempt, and which of them did not answer."""
    silent: tuple[str, ...] = ()


def door_of(job: str, generation: int) -> str:
    return f"{job}.g{generation}"


def fresh(seat: ReplicaSeat, node: str = "", address: str = "") -> BeaconRecord:
    return BeaconRecord(
        set=seat.set, size=seat.size, min_replicas=seat.min_replicas, node=node, address=address
    )


def shared(record: BeaconRecord) -> SharedRecord:
    return SharedRecord(
        version=record.version,
        quorum_id=record.quorum_id,
        formed=record.formed,
        members=record.members,
        changes=record.changes,
        closed=record.closed,
        left_out=record.left_out,
        cut_off=record.cut_off,
    )


def keep(record: BeaconRecord, newer: SharedRecord) -> None:
    """Take over what another node knows. A decision that was made is never taken back."""
    known = {change.version: change for change in newer.changes}
    for change in record.changes:
        if not change.open or change.version not in known:
            known[change.version] = change
    record.changes[:] = [change for _, change in sorted(known.items())]
    record.quorum_id = max(record.quorum_id, newer.quorum_id)
    record.closed[:] = list(dict.fromkeys([*record.closed, *newer.closed]))[-CLOSED_KEPT:]
    record.formed = record.formed or newer.formed
    if newer.version >= record.version:
        record.version, record.members = newer.version, dict(newer.members)
        record.left_out.clear()
        record.left_out.update(newer.left_out)
        record.cut_off.clear()
        record.cut_off.update(newer.cut_off)


def move(record: BeaconRecord, site: LighthouseSite) -> None:
    """The lighthouse is there from now on. If that is here, it begins with what this node kept."""
    began, mine = record.site is None or site.term > record.term, site.node == record.node
    if began and mine and record.relays:
        notice_all(record)  # the lighthouse before this one may have had no time to
        record.quorum_id += QUORUMS_APART
        record.gate_port = 0
    if began and not mine:
        record.gate_port = 0
        record.doors = {door: port for door, port in record.doors.items() if door not in record.owners}
    if began:
        record.owners, record.awaited = {}, list(site.awaited) if mine else []
        if not mine or record.relays:
            record.answered, record.outdated = (), {}  # of a quorum that other nodes do not know
        record.site = site


def state_of(record: BeaconRecord, now_s: float) -> QuorumState:
    """With what a lighthouse begins. Members of the last quorum count as alive until their heartbeats show
    it, or do not."""
    living = {id: door for id, door in record.members.items() if door not in record.closed}
    answered = {member.replica_id: member for member in record.answered}
    return QuorumState(
        {id: QuorumCandidate(door, now_s) for id, door in living.items()},
        tuple(record.members),
        record.quorum_id,
        record.formed,
        answered if answered.keys() <= living.keys() else {},
        left_out=record.left_out,
        cut_off=record.cut_off,
        outdated=record.outdated,
    )


def notice(record: BeaconRecord, door: str, others: int, why: str = "") -> None:
    """This node's agent is to report what is known of this replica's links."""
    cut = record.cut_off.get(door, CutOff((), out=False))
    record.noticed = max(record.noticed + 1, time.time_ns() // 1000)  # also after one of the same name
    kept = [one for one in record.notices if one.door != door]
    record.notices = [*kept, LinkNotice(record.noticed, door, cut.links, cut.out, others, why)]


def notice_all(record: BeaconRecord) -> None:
    for door in record.members.values():
        if door not in record.cut_off:
            notice(record, door, 0)
    for door in record.cut_off:
        notice(record, door, len(record.members))


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
