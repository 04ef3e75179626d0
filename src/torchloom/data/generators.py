"""The global random generators of Python, NumPy and torch, as their states: looked at, seeded, restored.

Looking has to be cheap, because it happens around every batch: `random.getstate()` and
`numpy.random.get_state()` build 625 numbers each time (14 and 43 µs). So the two are read from where the
interpreter and NumPy keep them (NumPy documents the address; Python's is checked against `getstate()` before
it is used, else `getstate()` is). States are only ever written with the modules' own functions.
"""

from __future__ import annotations

import _random
import ctypes
import random
import struct
import sys
from typing import Any, Protocol

import torch

_WORDS = 624
_BYTES = 4 * (_WORDS + 1)
_Memory = ctypes.c_char * _BYTES


def _libc_memcmp() -> Any:
    try:
        found = ctypes.CDLL(None).memcmp
    except (OSError, AttributeError, TypeError):
        return None
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    return found


_memcmp = _libc_memcmp()


class Generator(Protocol):
    """One global generator."""

    name: str

    def state(self) -> Any:
        """All that decides its next numbers."""

    def is_at(self, state: Any) -> bool:
        """Nobody has drawn since that `state()`."""

    def seed(self, seed: int) -> None:
        """Let it start from there."""

    def restore(self, state: Any) -> None:
        """Let it continue from a `state()`."""


class PythonGenerator:
    """The functions of module `random`."""

    name = "python"

    def __init__(self) -> None:
        self._of: Any = random.getstate.__self__  # type: ignore[attr-defined]
        self._memory = self._found()

    def state(self) -> Any:
        return random.getstate() if self._memory is None else (self._memory.raw, self._of.gauss_next)

    def is_at(self, state: Any) -> bool:
        return bool(self.state() == state)

    def seed(self, seed: int) -> None:
        _random.Random.seed(self._of, seed)  # what random.seed() does for a whole number, in half the time
        self._of.gauss_next = None

    def restore(self, state: Any) -> None:
        if self._memory is not None:
            index, *words = struct.unpack(f"=i{_WORDS}I", state[0])
            state = 3, (*words, index), state[1]
        random.setstate(state)

    def _found(self) -> Any:
        """Where the state is kept: behind the object's head, the index first. None if it is not there."""
        head = object.__basicsize__
        if sys.implementation.name != "cpython" or _random.Random.__basicsize__ < head + _BYTES:
            return None
        memory = _Memory.from_address(id(self._of) + head)
        version, known, _ = random.getstate()
        index, *words = struct.unpack(f"=i{_WORDS}I", memory.raw)
        return memory if version == 3 and (*words, index) == known else None


class TorchGenerator:
    """`torch.default_generator`: the CPU's."""

    name = "torch"

    def state(self) -> Any:
        return torch.default_generator.get_state()

    def is_at(self, state: Any) -> bool:
        now = torch.default_generator.get_state()
        if _memcmp is None:
            return bool(torch.equal(now, state))
        # Both are whole 8-bit tensors of the CPU; torch.equal takes ten times as long for 5 kB.
        same = now.nbytes == state.nbytes and _memcmp(now.data_ptr(), state.data_ptr(), now.nbytes) == 0
        return bool(same)

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def restore(self, state: Any) -> None:
        torch.default_generator.set_state(state)


class NumpyGenerator:
    """The functions of module `numpy.random`. Bits of another kind than NumPy's own choice were put there by
    the user, and are left alone."""

    name = "numpy"

    def __init__(self, numpy: Any) -> None:
        self._random = numpy.random
        self._bits: Any = None
        self._memory: Any = None
        self._clean = b""
        """The words at which no normal number was kept for the next call. That number is not among the words
        and taking it leaves them as they are; making one changes them."""

    def state(self) -> Any:
        bits = self._random.mtrand._rand._bit_generator
        if bits is not self._bits:
            is_known = type(bits).__name__ == "MT19937"
            self._memory = _Memory.from_address(bits.ctypes.state_address) if is_known else None
            self._bits, self._clean = bits, b""
        if self._memory is None:
            return None
        words = self._memory.raw
        if words != self._clean:
            state = self._random.get_state()
            if state[3]:
                return state
            self._clean = words
        return words

    def is_at(self, state: Any) -> bool:
        """What kept a number is taken as drawn from."""
        return state is None or (isinstance(state, bytes) and self._memory.raw == state)

    def seed(self, seed: int) -> None:
        if self._memory is not None:
            self._random.seed(seed & 0xFFFF_FFFF)

    def restore(self, state: Any) -> None:
        if isinstance(state, bytes):
            *words, position = struct.unpack(f"={_WORDS}Ii", state)
            state = "MT19937", words, position, 0, 0.0
        if state is not None:
            self._random.set_state(state)


_present: list[Generator] = [PythonGenerator(), TorchGenerator()]
_numpy: NumpyGenerator | None = None


def generators() -> list[Generator]:
    """Those that exist now, NumPy's only once somebody has imported it; the same list until then."""
    global _numpy, _present
    if _numpy is None and hasattr(numpy := sys.modules.get("numpy"), "random"):
        _numpy = NumpyGenerator(numpy)
        _present = [*_present, _numpy]
    return _present
