"""The bytes of a Flight Recorder dump to plain data: a pickle, as torch writes it to files, or JSON."""

from __future__ import annotations

import msgspec

from torchloom.errors import DumpUnreadable
from torchloom.wire.plain_pickle import ReadLimits, loads


def decode_dump(data: bytes, limits: ReadLimits = ReadLimits()) -> object:
    """Raises DumpUnreadable with the reason."""
    if len(data) > limits.size:
        raise DumpUnreadable(f"it is larger than {limits.size // 2**20} MB")
    if not data:
        raise DumpUnreadable("it is empty")
    if data.lstrip()[:1] != b"{":
        return loads(data, limits)
    if data.count(b",") + data.count(b"[") > limits.values:
        raise DumpUnreadable("it holds too many values")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DumpUnreadable("it is damaged, or not a dump") from error
