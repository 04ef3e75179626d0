"""Records survive the wire unchanged, and what is not a record is refused with one kind of error."""

from __future__ import annotations

import msgspec
import pytest
from core_story import KILLED, Story, limits, raised

from torchloom.model import events as all_events
from torchloom.model.effects import StopWorkers
from torchloom.model.events import Decided, Envelope, EventBase, LeaseTaken
from torchloom.model.messages import Command, LogPiece, ReadBox, ReadLog, Receipt, Telemetry, WorkerPulse
from torchloom.model.worker import WorkerRef
from torchloom.wire import codec

REF = WorkerRef("job", 3, 2, 9)


def test_a_whole_fleet_survives_the_wire() -> None:
    story = Story(a=8, b=8)
    story.run(workers=2, nodes=2, restarts=limits(max_restarts=3), labels={"team": "x"})
    story.exit(1, KILLED, end=raised(), log_tail=("last", "words"))
    story.submit("other", workers=3)
    again = codec.decode_fleet(codec.encode(story.fleet))
    assert again == story.fleet
    assert codec.encode(again) == codec.encode(story.fleet)


def test_effects_survive_inside_events_and_commands() -> None:
    story = Story(a=8)
    effects = tuple(story.submit() + story.store_up() + story.stop())
    assert len({type(e) for e in effects}) == 3
    envelope = Envelope("d-1", "weaver", Decided(epoch=4, effects=effects))
    assert codec.decode_envelope(codec.encode(envelope)) == envelope
    for effect in effects:
        command = Command(4, effect, {"A": "b"})
        assert codec.decode_command(codec.encode(command)) == command


def test_messages_survive_the_wire() -> None:
    pulse = WorkerPulse(
        ref=REF, pid=7, steps=5, step_s=0.1, idle_s=0.0, phase="training", phase_s=1.0, metrics={"loss": 0.5}
    )
    telemetry = Telemetry(node="a", session="s", at_ns=1, epoch=2, workers=(pulse,))
    assert codec.decode_telemetry(codec.encode(telemetry)) == telemetry
    piece = LogPiece(b"line\n\xff", 10, 16, lost_bytes=3, ended=True)
    assert codec.decode_log_piece(codec.encode(piece)) == piece
    receipt = Receipt(False, 9, "an older epoch")
    assert codec.decode_receipt(codec.encode(receipt)) == receipt
    for query in (ReadLog("job", 0, -10), ReadBox(REF)):
        assert codec.decode_query(codec.encode(query)) == query


def test_every_event_has_a_tag_of_its_own_and_is_in_the_union() -> None:
    kinds = [k for k in vars(all_events).values() if isinstance(k, type) and issubclass(k, EventBase)]
    tags = {k.__struct_config__.tag for k in kinds if k is not EventBase}
    assert len(tags) == len(kinds) - 1 and all(isinstance(t, str) for t in tags)
    assert set(all_events.Event.__args__) == {k for k in kinds if k is not EventBase}


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"garbage", msgspec.msgpack.encode({"id": "x"}), msgspec.msgpack.encode([1, 2, 3])],
)
def test_what_is_not_a_message_is_a_decode_error(data: bytes) -> None:
    for decode in (codec.decode_envelope, codec.decode_receipt, codec.decode_command, codec.decode_telemetry):
        with pytest.raises(codec.DecodeError):
            decode(data)


def test_an_unknown_event_is_refused_and_a_newer_field_is_ignored() -> None:
    good = msgspec.to_builtins(Envelope("x", "w", LeaseTaken(weaver="w", epoch=1)))
    newer = {**good, "body": {**good["body"], "from_the_future": 1}}
    assert codec.decode_envelope(msgspec.msgpack.encode(newer)).body == LeaseTaken(weaver="w", epoch=1)
    strange = {**good, "body": {"event": "from-the-future"}}
    with pytest.raises(codec.DecodeError):
        codec.decode_envelope(msgspec.msgpack.encode(strange))


def test_records_are_frozen() -> None:
    stop = StopWorkers(id="e", cause=1, reason="why", node="a", workers=(REF,))
    with pytest.raises(AttributeError):
        stop.node = "b"  # type: ignore[misc]
