"""Bytes that real managers sent, and what becomes of them."""

from __future__ import annotations

import pytest

from torchloom.wire.torchft_messages import at_step, heartbeat_request, quorum_request, quorum_response

STABLE = b"\n1\n\nrep_0:uuid\x12\x16http://localhost:45739\x1a\x03s:1 \x07(\x030\x01@\x05"
NIGHTLY = (
    b"\nI\n\nrep_0:uuid\x12\x16http://localhost:34037\x1a\x03s:1 \x07(\x030\x01@\x05" + b"J\x06HANDLE" * 3
)
"""Recorded from ManagerServer of torchft 0.2.0 and of the nightly of 2026-10-26."""


@pytest.mark.parametrize("data", [STABLE, NIGHTLY])
def test_a_request_of_each_release_is_read_and_passed_on_as_it_is(data: bytes) -> None:
    member = quorum_request(data)
    assert (member.replica_id, member.step, member.world_size) == ("rep_0:uuid", 7, 3)
    assert member.shrink_only and member.commit_failures == 5
    assert member.raw == data[2:]


@pytest.mark.parametrize("step", [0, 6, 1 << 40])
def test_a_member_can_be_given_another_step(step: int) -> None:
    raw = at_step(quorum_request(NIGHTLY).raw, step)
    assert len(raw) < 0x80
    assert quorum_request(b"\n" + bytes([len(raw)]) + raw).step == step


def test_a_heartbeat() -> None:
    assert heartbeat_request(b"\n\nrep_0:uuid") == "rep_0:uuid"
    assert heartbeat_request(b"") == ""


def test_an_answer_holds_the_members_byte_for_byte() -> None:
    raw = quorum_request(NIGHTLY).raw
    answer = quorum_response(300, [raw, raw], 1.5)
    assert answer.count(raw) == 2
    quorum = answer[3:] if answer[1] >= 0x80 else answer[2:]
    assert quorum[:3] == b"\x08\xac\x02", "quorum_id = 300"
    assert quorum.endswith(b"\x08\x01\x10\x80\xca\xb5\xee\x01"), "created = 1.5 s"


@pytest.mark.parametrize(
    "data", [b"", b"\n\x05ab", b"\n", b"\x0b\x01", b"\n" + b"\xff" * 11, b"\n\x03\n\x01\xff"]
)
def test_what_cannot_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        quorum_request(data)
