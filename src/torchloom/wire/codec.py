"""Bytes to records and back: MessagePack through msgspec, one encoder and decoder per kind of message."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from torchloom.model.events import Envelope
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
)
from torchloom.model.windows import WindowBatch

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_envelope = msgspec.msgpack.Decoder(Envelope)
_command = msgspec.msgpack.Decoder(Command)
_lease_ask = msgspec.msgpack.Decoder(AskLease)
_standing = msgspec.msgpack.Decoder(Standing)
_receipt = msgspec.msgpack.Decoder(Receipt)
_query = msgspec.msgpack.Decoder(Query)
_telemetry = msgspec.msgpack.Decoder(Telemetry)
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


def _guarded(decode: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """Content that is nested without end in a field that we do not know is no such message, either."""

    def guarded(data: bytes) -> T:
        try:
            return decode(data)
        except RecursionError:
            raise DecodeError("it is nested too deeply") from None

    return guarded


encode = _encoder.encode
decode_envelope = _guarded(_envelope.decode)
decode_command = _guarded(_command.decode)
decode_lease_ask = _guarded(_lease_ask.decode)
decode_standing = _guarded(_standing.decode)
decode_receipt = _guarded(_receipt.decode)
decode_query = _guarded(_query.decode)
decode_telemetry = _guarded(_telemetry.decode)
decode_log_piece = _guarded(_log_piece.decode)
decode_steps_reading = _guarded(_steps_reading.decode)
decode_box_reading = _guarded(_box_reading.decode)
decode_checkpoint_answer = _guarded(_checkpoint_answer.decode)
decode_evidence_answer = _guarded(_evidence_answer.decode)
decode_dumps_answer = _guarded(_dumps_answer.decode)
decode_window_batch = _guarded(_window_batch.decode)
decode_fleet = _guarded(_fleet.decode)
