"""A writer of TensorBoard event files: records with checksums, each a small protocol buffer.

The format is fixed and small, so it needs neither TensorBoard nor TensorFlow.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import BinaryIO


class EventsFile:
    """One new file in a directory. Several writers use several files, which TensorBoard reads together."""

    def __init__(self, directory: Path, at_s: float) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        host = socket.gethostname().replace("/", "-")
        self.path = directory / f"events.out.tfevents.{int(at_s)}.{host}.{os.getpid()}.torchloom"
        self._file: BinaryIO = self.path.open("ab")
        self._record(_double(1, at_s) + _text(3, "brain.Event:2"))

    def scalar(self, name: str, value: float, step: int, at_s: float) -> None:
        summary = _bytes(1, _text(1, name) + _float(2, value))
        self._record(_double(1, at_s) + _number(2, step) + _bytes(5, summary))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _record(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._file.write(length + _masked(length) + data + _masked(data))


def _varint(value: int) -> bytes:
    made = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode("utf-8", "replace"))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    try:
        return _varint(field << 3 | 5) + struct.pack("<f", value)
    except OverflowError:  # beyond what the format can hold
        return _varint(field << 3 | 5) + struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _table() -> list[int]:
    made = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        made.append(number)
    return made


_CRC32C = _table()


def _masked(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted, so that a checksum of a checksum is not a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
