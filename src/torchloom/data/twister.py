"""A sample's first random numbers, put into a Mersenne Twister: 64 bytes instead of 624 words.

The generators of Python and NumPy keep 624 words and give them out from a position on; when all are used up,
they make the next 624 from them. Seeding one fills all of them, which takes longer than a loader needs for a
sample. So the first 16 words of a sample are a hash of its name. They are put to the end of the words, and
the words before them, which are those of its seed, count only for a sample that draws more than these 16.

Owns where the words are in memory, and how to see whether more was drawn.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

WORDS = 624
GIVEN = 16
"""Words that are a sample's own: eight numbers of `random.random()`."""
FIRST = WORDS - GIVEN
TO_KEEP_ONE = 4
"""Words that are used at least when normal numbers are made, of which the second is kept."""
_BYTES = 4


class Twister:
    """The words of one generator, at addresses that were checked before."""

    def __init__(self, words: int, position: int) -> None:
        self.given = (ctypes.c_char * (_BYTES * GIVEN)).from_address(words + _BYTES * FIRST)
        self.position = ctypes.c_int.from_address(position)
        self._others = (ctypes.c_char * (_BYTES * FIRST)).from_address(words)
        self._known: tuple[object, bytes] = None, b""

    def begin(self, given: bytes) -> None:
        """Give these words out first."""
        self.given.raw = given
        self.position.value = FIRST

    def fill(self, name: object, seed: Callable[[], None]) -> bytes:
        """Put the words before them to what `seed` makes of them, which is the same for the same name."""
        if self._known[0] == name:
            self._others.raw = self._known[1]
        else:
            seed()
            self._known = name, self.others()
        return self._known[1]

    def others(self) -> bytes:
        """The words before them: whoever uses up the given ones, or seeds the generator, changes them."""
        return self._others.raw


def begun(words: tuple[int, ...], given: bytes) -> tuple[int, ...]:
    """The words of a generator and its position, if `given` come first: for one whose memory is unknown."""
    return (*words[:FIRST], *struct.unpack(f"<{GIVEN}I", given), FIRST)
