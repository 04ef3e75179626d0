"""CRC-32, and that of two runs of bytes together from the sums of each: so that several threads sum one file.

Sums are those of zlib. ISA-L's function makes four times as many a second; where the job's interpreter lacks
it, zlib's is used. Owns the arithmetic of two runs: a CRC is a remainder of polynomials over the numbers 0
and 1; to append n bytes is to multiply by x to the power 8n and to add the remainder of those bytes. zlib
knows this too, but Python does not show it. Bits are reversed, as in zlib: the highest bit is the power 0.
"""

from __future__ import annotations

from functools import lru_cache

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["combine", "crc32"]

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31


def combine(first: int, second: int, length: int) -> int:
    """The CRC-32 of the bytes with sum `first` followed by `length` bytes with sum `second`."""
    return _times(_power(length), first) ^ second


@lru_cache(maxsize=256)
def _power(length: int) -> int:
    """x to the power 8·length."""
    result, factor = _ONE, _ONE >> 8
    while length:
        if length & 1:
            result = _times(result, factor)
        factor = _times(factor, factor)
        length >>= 1
    return result


def _times(one: int, other: int) -> int:
    product = 0
    while one:
        if one & _ONE:
            product ^= other
        one = (one << 1) & 0xFFFFFFFF
        other = (other >> 1) ^ _POLYNOMIAL if other & 1 else other >> 1
    return product
