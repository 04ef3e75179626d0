"""The list of schemas is that of the code, and nobody reads more than it knows."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from torchloom.agent import journal
from torchloom.agent.journal import Journal, ProcessNote
from torchloom.agent.neighbour import channel
from torchloom.bus import nats_lease
from torchloom.core.history import job_history
from torchloom.core.history.job_history import History, restored
from torchloom.data import loader_state
from torchloom.home import Home
from torchloom.model.effects import EffectBase, StopRendezvous
from torchloom.model.events import Decided, Envelope, EventBase, LeaseTaken
from torchloom.model.messages import Command
from torchloom.model.node import RendezvousRef
from torchloom.weaver import environments, snapshot
from torchloom.wire import blackbox, codec, schema_versions, subjects

SRC = Path(__file__).parents[3] / "src" / "torchloom"
BY_NAME = {schema.name: schema for schema in schema_versions.SCHEMAS}
EFFECT = StopRendezvous(id="e1", cause=1, reason="over", node="n", store=RendezvousRef("j", 1))


def constant(path: str, name: str) -> object:
    """Of a module that needs torch, without importing it."""
    for node in ast.parse((SRC / path).read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} has no {name}")


def last_digit(magic: object) -> int:
    assert isinstance(magic, bytes)
    return int(magic[-1:])


def test_the_list_has_the_numbers_of_the_code() -> None:
    in_code = {
        "events": schema_versions.EVENTS,
        "commands": schema_versions.COMMANDS,
        "messages": int(subjects.ROOT.removeprefix("loom.v")),
        "snapshots": snapshot.FORMAT_NUMBER,
        "environments": last_digit(environments._ENCRYPTED),
        "job histories": job_history.SCHEMA,
        "lease": nats_lease.SCHEMA,
        "spawner requests": schema_versions.SPAWNER,
        "process notes": journal.NOTE_SCHEMA,
        "black boxes": blackbox.LAYOUT_VERSION,
        "checkpoint manifests": constant("checkpoint/store/manifest.py", "FORMAT"),
        "checkpoint images": last_digit(constant("checkpoint/state/image.py", "MAGIC")),
        "states in memory": last_digit(constant("checkpoint/memory/header.py", "_MAGIC")),
        "states between agents": last_digit(channel._MAGIC),
        "loader states": loader_state.VERSION,
        "shard indexes": 1 if '"torchloom_index": 1' in (SRC / "data/shards/index.py").read_text() else 0,
        "HTTP API": int(str(constant("api/access_guard.py", "PREFIX")).removeprefix("/api/v")),
    }
    assert {name: schema.version for name, schema in BY_NAME.items()} == in_code
    assert len(BY_NAME) == len(schema_versions.SCHEMAS) and set(schema_versions.BEFORE) == set(BY_NAME)
    assert all(schema.reads_from <= schema.version for schema in schema_versions.SCHEMAS)


def test_no_event_or_effect_asks_for_more_than_this_version_reads() -> None:
    def all_of(base: type) -> list[type]:
        return [one for kind in base.__subclasses__() for one in (kind, *all_of(kind))]

    assert all(1 <= kind.since <= schema_versions.EVENTS for kind in all_of(EventBase))  # type: ignore[attr-defined]
    effects = [kind for kind in all_of(EffectBase) if kind is not _Later]
    assert all(1 <= kind.since <= schema_versions.COMMANDS for kind in effects)  # type: ignore[attr-defined]


class _Later(EffectBase, frozen=True, kw_only=True, tag="later"):
    """What a later version may send."""

    since: ClassVar[int] = schema_versions.COMMANDS + 1


def test_what_a_reader_must_know_is_written_into_events_and_commands() -> None:
    later = _Later(id="e2", cause=1, reason="new", node="n")
    plain = Envelope("1", "w", Decided(epoch=1, effects=(EFFECT,)))
    assert codec.decode_envelope(codec.encode_envelope(plain)) == plain
    newer = Envelope("1", "w", Decided(epoch=1, effects=(EFFECT, later)))  # type: ignore[arg-type]
    with pytest.raises(codec.NewerSchema, match="it has schema 2, this version reads up to 1"):
        codec.decode_envelope(codec.encode_envelope(newer))
    with pytest.raises(codec.NewerSchema):
        codec.decode_command(codec.encode_command(Command(1, later)))  # type: ignore[arg-type]


def test_a_newer_schema_is_refused_also_if_all_its_fields_are_known() -> None:
    taken = LeaseTaken(weaver="w", epoch=1)
    with pytest.raises(codec.NewerSchema):
        codec.decode_envelope(codec.encode(Envelope("1", "w", taken, schema=2)))
    with pytest.raises(codec.NewerSchema):
        codec.decode_command(codec.encode(Command(1, EFFECT, schema=2)))


def test_events_and_commands_from_before_there_were_schemas_are_read() -> None:
    body = {"event": "lease-taken", "weaver": "w", "epoch": 3}
    old = msgspec.msgpack.encode({"id": "1", "source": "w", "body": body, "sent_ns": 0, "session": ""})
    assert codec.decode_envelope(old).body == LeaseTaken(weaver="w", epoch=3)
    fields = msgspec.to_builtins(Command(1, EFFECT))
    del fields["schema"]
    assert codec.decode_command(msgspec.msgpack.encode(fields)).effect == EFFECT


def test_damage_is_not_taken_for_a_newer_schema() -> None:
    for data in (b"", b"\xff\xff", msgspec.msgpack.encode({"schema": "2"}), msgspec.msgpack.encode([9])):
        with pytest.raises(codec.DecodeError) as raised:
            codec.decode_envelope(data)
        assert not isinstance(raised.value, codec.NewerSchema)


def test_a_version_says_what_of_another_one_it_reads() -> None:
    assert all(one.ok for one in schema_versions.compare({name: s.version for name, s in BY_NAME.items()}))
    assert all(one.ok for one in schema_versions.compare({})), "a service from before there was an answer"
    assert all(one.ok for one in schema_versions.compare({"states between agents": 1})), "they do without"
    assert not all(one.ok for one in schema_versions.compare({"commands": 2}))
    theirs = {"events": 2, "unheard of": 1}
    assert {one.schema for one in schema_versions.compare(theirs) if not one.ok} == {"events", "unheard of"}


def test_a_newer_snapshot_is_passed_over_with_both_numbers() -> None:
    with pytest.raises(snapshot.Damaged, match="it has format 7, this version reads 6"):
        snapshot.unpack(b"loom-fleet-7\n" + b"x" * 64)


def test_a_newer_history_is_refused() -> None:
    packed = History().pack()
    assert restored(packed)
    with pytest.raises(ValueError, match="schema 2"):
        restored(msgspec.structs.replace(packed, schema=2))


def test_a_newer_lease_counts_as_held() -> None:
    import base64
    import json

    value = {"schema": 2, "whoever": "w"}
    message = {"seq": 7, "time": "2026-01-01T00:00:00Z", "data": base64.b64encode(json.dumps(value).encode())}
    entry = nats_lease.parse_entry(message)
    assert entry.token and entry.ttl_s > 0 and entry.last_epoch == 7


def test_a_note_of_a_newer_agent_is_neither_used_nor_removed(tmp_path: Path) -> None:
    written = Journal(Home(tmp_path))
    written.open()
    try:
        note = ProcessNote("store", "j", 1, "boot", 77, 5, "key", schema=journal.NOTE_SCHEMA + 1)
        written.keep(note)
        assert written.notes() == []
        assert (tmp_path / "agent" / "processes" / note.name).is_file()
    finally:
        written.close()
