"""Bytes to records and back: MessagePack through msgspec, one encoder and decoder per kind of message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from torchloom.model.events import Decided, Envelope
from torchloom.model.fleet import Fleet
from torchloom.model.messages import (
    AskLease,
    BoxReading,
    CheckpointAnswer,
    Command,
    DumpsAnswer,
    EvidenceAnswer,
    LogPiece,
    Query,
    Receipt,
    Standing,
    StepsReading,
    Telemetry,
    WeaverPresence,
)
from torchloom.model.windows import WindowBatch
from torchloom.wire import schema_versions

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_envelope = msgspec.msgpack.Decoder(Envelope)
_command = msgspec.msgpack.Decoder(Command)
_lease_ask = msgspec.msgpack.Decoder(AskLease)
_standing = msgspec.msgpack.Decoder(Standing)
_receipt = msgspec.msgpack.Decoder(Receipt)
_query = msgspec.msgpack.Decoder(Query)
_telemetry = msgspec.msgpack.Decoder(Telemetry)
_presence = msgspec.msgpack.Decoder(WeaverPresence)
_log_piece = msgspec.msgpack.Decoder(LogPiece)
_steps_reading = msgspec.msgpack.Decoder(StepsReading)
_box_reading = msgspec.msgpack.Decoder(BoxReading)
_checkpoint_answer = msgspec.msgpack.Decoder(CheckpointAnswer)
_evidence_answer = msgspec.msgpack.Decoder(EvidenceAnswer)
_dumps_answer = msgspec.msgpack.Decoder(DumpsAnswer)
_window_batch = msgspec.msgpack.Decoder(WindowBatch)
_fleet = msgspec.msgpack.Decoder(Fleet)

DecodeError = msgspec.DecodeError
"""Raised by every decode function on bytes that are not such a message."""


class NewerSchema(DecodeError):
    """The message is one, but of a schema that this version does not know yet."""

    def __init__(self, schema: int, known: int) -> None:
        super().__init__(f"it has schema {schema}, this version reads up to {known}")
        self.schema = schema


class UnknownContent(DecodeError):
    """An event, but with a kind, a field or a value that this version does not know."""

    def __init__(self, why: object) -> None:
        super().__init__(f"it holds what this version does not know: {why}")


class _Kind(msgspec.Struct):
    event: str


class _Event(msgspec.Struct):
    """What any event has, of whatever version."""

    id: str
    source: str
    body: _Kind


class _Head(msgspec.Struct):
    """What can be read of a message whose content cannot."""

    schema: int = 1


class _Numbered(Protocol):
    @property
    def schema(self) -> int: ...


N = TypeVar("N", bound=_Numbered)
_head = msgspec.msgpack.Decoder(_Head)


def _guarded(decode: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """Content that is nested without end in a field that we do not know is no such message, either."""

    def guarded(data: bytes) -> T:
        try:
            return decode(data)
        except RecursionError:
            raise DecodeError("it is nested too deeply") from None

    return guarded


def _known(decode: Callable[[bytes], N], known: int) -> Callable[[bytes], N]:
    """Refuses a newer schema, whether or not its content could be read."""

    def checked(data: bytes) -> N:
        try:
            found = decode(data)
        except DecodeError:
            try:
                schema = _guarded(_head.decode)(data).schema
            except DecodeError:
                schema = 0
            if schema > known:
                raise NewerSchema(schema, known) from None
            raise
        if found.schema > known:
            raise NewerSchema(found.schema, known)
        return found

    return checked


encode = _encoder.encode


def encode_envelope(envelope: Envelope) -> bytes:
    """An event with the schema that its readers must know."""
    body = envelope.body
    effects = body.effects if isinstance(body, Decided) else ()
    schema = max((body.since, *(effect.since for effect in effects)))
    return encode(envelope if schema == envelope.schema else replace(envelope, schema=schema))


def encode_readable(envelope: Envelope) -> bytes:
    """An event that can be read again: one that cannot would stop every weaver. Raises DecodeError."""
    data = encode_envelope(envelope)
    decode_envelope(data)
    return data


def encode_command(command: Command) -> bytes:
    """A command with the schema that its agent must know."""
    schema = command.effect.since
    return encode(command if schema == command.schema else replace(command, schema=schema))


_decode_envelope = _known(_guarded(_envelope.decode), schema_versions.EVENTS)
_event = _guarded(msgspec.msgpack.Decoder(_Event).decode)


def decode_envelope(data: bytes) -> Envelope:
    """An event. Raises UnknownContent or NewerSchema for one that another version wrote."""
    try:
        return _decode_envelope(data)
    except msgspec.ValidationError as error:
        try:
            _event(data)
        except DecodeError:
            raise error from None
        raise UnknownContent(error) from None


decode_command = _known(_guarded(_command.decode), schema_versions.COMMANDS)
decode_lease_ask = _guarded(_lease_ask.decode)
decode_standing = _guarded(_standing.decode)
decode_receipt = _guarded(_receipt.decode)
decode_query = _guarded(_query.decode)
decode_telemetry = _guarded(_telemetry.decode)
decode_presence = _guarded(_presence.decode)
decode_log_piece = _guarded(_log_piece.decode)
decode_steps_reading = _guarded(_steps_reading.decode)
decode_box_reading = _guarded(_box_reading.decode)
decode_checkpoint_answer = _guarded(_checkpoint_answer.decode)
decode_evidence_answer = _guarded(_evidence_answer.decode)
decode_dumps_answer = _guarded(_dumps_answer.decode)
decode_window_batch = _guarded(_window_batch.decode)
decode_fleet = _guarded(_fleet.decode)
