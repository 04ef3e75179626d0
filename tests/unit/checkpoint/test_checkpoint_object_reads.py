"""Bytes of an object store go straight to where they are wanted, and hold no other thread up."""

from __future__ import annotations

import builtins
import random
from typing import Any

import pytest

from torchloom.checkpoint.store import objects
from torchloom.checkpoint.store.objects import HOLDS_OTHERS_UP


def deal(data: bytes, lengths: list[int]) -> tuple[int, list[bytes]]:
    buffers = [bytearray(b"-" * length) for length in lengths]
    count = objects._deal(memoryview(data), [memoryview(buffer) for buffer in buffers])
    return count, [bytes(buffer) for buffer in buffers]


@pytest.mark.parametrize("numpy", [True, False])
@pytest.mark.parametrize("short", [0, 5, HOLDS_OTHERS_UP + 7])
def test_buffers_get_the_bytes_one_after_another(
    numpy: bool, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not numpy:
        usual = builtins.__import__

        def without(name: str, *rest: Any, **more: Any) -> Any:
            if name == "numpy":
                raise ImportError(name)
            return usual(name, *rest, **more)

        monkeypatch.setattr(builtins, "__import__", without)
    lengths = [3, HOLDS_OTHERS_UP, 1, HOLDS_OTHERS_UP * 3 + 1, 0, 10, HOLDS_OTHERS_UP + 5]
    data = random.Random(4).randbytes(sum(lengths) - short)
    count, found = deal(data, lengths)
    assert count == len(data)
    assert b"".join(found) == data + b"-" * short  # what was not there is left as it was


def test_nothing_is_dealt_of_nothing() -> None:
    assert deal(b"", [4]) == (0, [b"----"])
