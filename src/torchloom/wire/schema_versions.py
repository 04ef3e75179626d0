"""Every schema of torchloom in one place: its version, the oldest one that is still read, where it stands.

A part of version N works together with parts of version N−1. So a number changes only when a reader that
does not know the change would do something wrong; a field that may be ignored changes none. A reader that
meets a newer number never guesses. A unit test compares the list with the code.

Owns the numbers of events, commands and the spawner's requests. Everything else has its number where its
layout is defined. Pure, and only the standard library: the spawner uses it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EVENTS = 1
COMMANDS = 1
SPAWNER = 1


@dataclass(frozen=True)
class Schema:
    """One kind of message or record."""

    name: str
    version: int
    """What this torchloom writes."""
    reads_from: int
    """The oldest version that it reads."""
    where: str
    """Where the number stands."""
    newer: str
    """What a reader does that meets a newer one."""
    stored: bool
    """Whether it outlives the process that wrote it, so that a later version meets it."""
    needed: bool = True
    """Whether parts that do not read each other's must not run side by side; else they do without it."""


SCHEMAS = (
    Schema("events", EVENTS, 1, "Envelope.schema", "a weaver stops leading; an agent's is passed over", True),
    Schema("commands", COMMANDS, 1, "Command.schema", "the agent refuses it", False),
    Schema("messages", 1, 1, "the subject, loom.v1.…", "nobody listens there", False),
    Schema("snapshots", 6, 6, "first line of the object", "passed over for an older one", True),
    Schema("environments", 1, 1, "first bytes of the object, LOOMENV1", "the job does not start", True),
    Schema("job histories", 1, 1, "PackedHistory.schema", "the curves begin anew", True),
    Schema("lease", 1, 1, "field `schema` of the entry", "it counts as held while it changes", True),
    Schema("spawner requests", SPAWNER, 1, "field `schema` of a request", "the spawner refuses it", False),
    Schema("process notes", 1, 1, "ProcessNote.schema", "the note is left alone", True),
    Schema("black boxes", 5, 5, "a word of the header", "the worker is watched without its box", True),
    Schema("checkpoint manifests", 1, 1, "field `format`", "the checkpoint is not used", True),
    Schema("checkpoint images", 2, 2, "first bytes, LOOMIMG2", "the checkpoint is not used", True),
    Schema("states in memory", 1, 1, "first bytes, LOOMMEM1", "the checkpoint store is used", True),
    Schema("states between agents", 2, 2, "first bytes, LOOMNBR2", "the connection is refused", False, False),
    Schema("loader states", 1, 1, "field `version`", "the job does not resume, with the reason", True),
    Schema("shard indexes", 1, 1, "field `torchloom_index`", "the index is refused", True),
    Schema("HTTP API", 1, 1, "the path, /api/v1", "404", False),
)
BEFORE = {schema.name: 1 for schema in SCHEMAS} | {
    "snapshots": 6,
    "black boxes": 5,
    "checkpoint images": 2,
}
"""What a service writes that is older than its own answer to this question."""


@dataclass(frozen=True)
class Readable:
    """Whether this torchloom reads what another one writes."""

    schema: str
    theirs: int
    reads_from: int
    reads_to: int
    stored: bool
    needed: bool = True

    @property
    def ok(self) -> bool:
        return not self.needed or self.reads_from <= self.theirs <= self.reads_to


def compare(theirs: Mapping[str, int]) -> list[Readable]:
    """What this version makes of the schemas that a running service names; one that only they know is
    unreadable here."""
    own = {schema.name: schema for schema in SCHEMAS}
    known = [
        Readable(s.name, theirs.get(s.name, BEFORE[s.name]), s.reads_from, s.version, s.stored, s.needed)
        for s in SCHEMAS
    ]
    return known + [
        Readable(name, version, 0, 0, True) for name, version in theirs.items() if name not in own
    ]
