"""The header of a slot: what says that an image in memory is whole, and which state it is.

    0      magic, length of the body, its CRC-32
    16     body: JSON
    4096   the image, in whole blocks; then the 64-bit sums of its blocks

Owns that layout. Needs no torch: the agents, which copy slots from host to host, read it too.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from torchloom.checkpoint.store.names import CheckpointName

HEADER = 4096
BLOCK = 1 << 20
"""What one sum is of."""
_MAGIC = b"LOOMMEM1"
HEAD = struct.Struct("<8sII")


@dataclass(frozen=True)
class SlotHeader:
    """Which state a slot holds."""

    name: CheckpointName
    world: int
    size: int
    save: str
    sealed_ns: int
    sums: int
    """CRC-32 of the sums of the image's blocks."""

    @property
    def whole(self) -> int:
        return whole(self.size)


def pack(header: SlotHeader) -> tuple[bytes, bytes]:
    """(head, body): the body is stored first, and the head makes it count."""
    body = json.dumps(
        {
            "generation": header.name.generation,
            "branch": header.name.branch,
            "step": header.name.step,
            "world": header.world,
            "size": header.size,
            "save": header.save,
            "sealed_ns": header.sealed_ns,
            "sums": header.sums,
        }
    ).encode()
    return HEAD.pack(_MAGIC, len(body), zlib.crc32(body)), body


def parse(head: bytes) -> SlotHeader | None:
    """From the first HEADER bytes of a slot; None if it is nothing."""
    try:
        magic, length, crc = HEAD.unpack(head[: HEAD.size])
        body = head[HEAD.size : HEAD.size + length]
        if magic != _MAGIC or length > HEADER - HEAD.size or zlib.crc32(body) != crc:
            return None
        facts = json.loads(body)
        size = int(facts["size"])
        if size < 0:
            return None
        return SlotHeader(
            name=CheckpointName(int(facts["generation"]), int(facts["step"]), int(facts["branch"])),
            world=int(facts["world"]),
            size=size,
            save=str(facts.get("save", facts.get("event", ""))),  # an older torchloom counted events only
            sealed_ns=int(facts.get("sealed_ns", 0)),
            sums=int(facts["sums"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, struct.error):
        return None


def read_header(path: Path) -> tuple[SlotHeader, bytes] | None:
    """The header of a slot file, parsed and as it is; None if the slot holds nothing whole."""
    try:
        with open(path, "rb", buffering=0) as file:
            head = os.pread(file.fileno(), HEADER, 0)
            found = parse(head)
            if found is None or os.fstat(file.fileno()).st_size < found.whole:
                return None
            return found, head
    except (OSError, OverflowError):
        return None


def block_count(size: int) -> int:
    return -(-size // BLOCK)


def padded(size: int) -> int:
    return block_count(size) * BLOCK


def whole(size: int) -> int:
    """Bytes of the file of an image of that size."""
    return HEADER + padded(size) + 8 * block_count(size)
