"""The messages between torchft's managers and a lighthouse: just enough of protobuf to read and answer them.

A quorum's members are passed on as their managers sent them, byte for byte. Fields that a newer torchft adds
therefore reach the other replicas unchanged. What cannot be read raises ValueError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchloom.model.quorum import QuorumMember

SERVICE = "torchft.LighthouseService"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def quorum_request(data: bytes) -> QuorumMember:
    """LighthouseQuorumRequest{requester = 1}."""
    raw = b""
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            raw = value
    if not raw:
        raise ValueError("the quorum request names no requester")
    found: dict[int, int | bytes] = dict(_fields(raw))
    return QuorumMember(
        replica_id=_text(found.get(1, b"")),
        step=_signed(found.get(4, 0)),
        world_size=_signed(found.get(5, 0)),
        shrink_only=bool(found.get(6, 0)),
        commit_failures=_signed(found.get(8, 0)),
        raw=raw,
    )


def manager_address(raw: bytes) -> str:
    """Where the manager of a member answers."""
    return _text(dict(_fields(raw)).get(2, b""))


def at_step(raw: bytes, step: int) -> bytes:
    """A member with another step: of a field that stands twice the last one counts."""
    return raw + _number(4, step)


def heartbeat_request(data: bytes) -> str:
    """LighthouseHeartbeatRequest{replica_id = 1}."""
    return _text(dict(_fields(data)).get(1, b""))


def quorum_response(quorum_id: int, members: Sequence[bytes], created_s: float) -> bytes:
    """LighthouseQuorumResponse{quorum = 1}, with Quorum{quorum_id = 1, participants = 2, created = 3}."""
    seconds = int(created_s)
    created = _number(1, seconds) + _number(2, int((created_s - seconds) * 1e9))
    quorum = _number(1, quorum_id) + b"".join(_bytes(2, raw) for raw in members) + _bytes(3, created)
    return _bytes(1, quorum)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"field {number} has the unknown wire type {kind}")
        if at + length > len(data):
            raise ValueError(f"field {number} is cut off")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST_VARINT):
        if at + index >= len(data):
            raise ValueError("a number is cut off")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a number is too long")


def _signed(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a number was expected")
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(value: int | bytes) -> str:
    if not isinstance(value, bytes):
        raise ValueError("a text was expected")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError("a text is not UTF-8") from None


def _encoded(value: int) -> bytes:
    made = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _number(field: int, value: int) -> bytes:
    return _encoded(field << 3 | _VARINT) + _encoded(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _encoded(field << 3 | _BYTES) + _encoded(len(value)) + value
