"""Checksums are zlib's, whoever makes them: a state saved with one function is restored with the other."""

import random
import subprocess
import sys
import zlib

import pytest

from torchloom.checkpoint.state.crc import crc32

WITHOUT = """
import sys, zlib
sys.modules["isal"] = None
from torchloom.checkpoint.state import crc
assert crc.crc32 is zlib.crc32
from torchloom.checkpoint.store import verify
"""


def test_the_fast_function_is_installed_with_us() -> None:
    assert crc32 is not zlib.crc32


@pytest.mark.parametrize("size", [0, 1, 7, 63, 64, 1000, 6000, 1 << 20, (1 << 20) + 13])
def test_sums_are_those_of_zlib_at_any_place_and_from_any_start(size: int) -> None:
    chance = random.Random(size)
    data = memoryview(bytearray(chance.randbytes(size + 16)))
    for at in (0, 1, 5, 8):
        for start in (0, 1, 0xFFFFFFFF, chance.getrandbits(32)):
            assert crc32(data[at : at + size], start) == zlib.crc32(data[at : at + size], start)


def test_an_interpreter_without_it_uses_zlib() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
