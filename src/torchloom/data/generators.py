"""The global random generators of Python, NumPy and torch, as their states: looked at, seeded, restored.

Looking has to be cheap, because it happens around every batch: `random.getstate()` and
`numpy.random.get_state()` build 625 numbers each time (14 and 43 µs), and torch's `get_state()` a tensor. So
states are read from where they are kept, and put back there byte for byte. NumPy documents the address. For
Python and torch it is checked against the module's own functions before it is used; if it is not what we
know, those functions are.
"""

from __future__ import annotations

import _random
import ctypes
import random
import struct
import sys
from typing import Any, Protocol

import torch

from torchloom.data.twister import WORDS, Twister, begun

_BYTES = 4 * (WORDS + 1)
_Memory = ctypes.c_char * _BYTES


class Generator(Protocol):
    """One global generator."""

    name: str
    takes_words: bool
    """A sample's first numbers are words of its own (twister.py)."""

    @property
    def twister(self) -> Twister | None:
        """Its words; None if they cannot be put there without a whole seed."""

    def state(self) -> Any:
        """All that decides its next numbers."""

    def is_at(self, state: Any) -> bool:
        """Nobody has drawn since that `state()`."""

    def seed(self, seed: int) -> None:
        """Let it start from there."""

    def start(self, seed: int, words: bytes) -> None:
        """The same, with these words first if it takes words."""

    def forget(self) -> None:
        """A normal number that is kept for the next call is not given out; only if it has a twister."""

    def restore(self, state: Any) -> None:
        """Let it continue from a `state()`."""


_seed_python = _random.Random.seed


class PythonGenerator:
    """The functions of module `random`."""

    name = "python"
    takes_words = True

    def __init__(self) -> None:
        self._of: Any = random.getstate.__self__  # type: ignore[attr-defined]
        self._memory = self._found()
        self._twister = None
        if self._memory is not None and sys.byteorder == "little":
            position = ctypes.addressof(self._memory)
            self._twister = Twister(position + 4, position)

    @property
    def twister(self) -> Twister | None:
        return self._twister if self._memory is not None else None

    def state(self) -> Any:
        return random.getstate() if self._memory is None else (self._memory.raw, self._of.gauss_next)

    def is_at(self, state: Any) -> bool:
        return bool(self.state() == state)

    def seed(self, seed: int) -> None:
        _seed_python(self._of, seed)  # what random.seed() does for a whole number, in half the time
        if self._of.gauss_next is not None:
            self._of.gauss_next = None

    def start(self, seed: int, words: bytes) -> None:
        self.seed(seed)
        if self.twister is not None:
            self.twister.begin(words)
        else:
            version, known, kept = random.getstate()
            random.setstate((version, begun(known, words), kept))

    def forget(self) -> None:
        self._of.gauss_next = None

    def restore(self, state: Any) -> None:
        if self._memory is None:
            random.setstate(state)
        else:
            self._memory.raw, self._of.gauss_next = state

    def _found(self) -> Any:
        """Where the state is kept: behind the object's head, the index first. None if it is not there."""
        head = object.__basicsize__
        if sys.implementation.name != "cpython" or _random.Random.__basicsize__ < head + _BYTES:
            return None
        memory = _Memory.from_address(id(self._of) + head)
        version, known, _ = random.getstate()
        index, *words = struct.unpack(f"=i{WORDS}I", memory.raw)
        return memory if version == 3 and (*words, index) == known else None


class TorchGenerator:
    """`torch.default_generator`: the CPU's."""

    name = "torch"
    takes_words = False
    twister = None

    def __init__(self) -> None:
        self._of: Any = torch.default_generator
        self._at = 0
        self._memory: Any = None
        self._known = _torch_is_known()

    def state(self) -> Any:
        if not self._known:
            return self._of.get_state()
        if self._of._cdata != self._at:
            self._at = self._of._cdata
            self._memory = _TorchMemory.from_address(self._at + _TORCH_FIRST)
        return self._memory.raw

    def is_at(self, state: Any) -> bool:
        return self.state() == state if self._known else bool(torch.equal(self._of.get_state(), state))

    def seed(self, seed: int) -> None:
        self._of.manual_seed(seed)

    def start(self, seed: int, words: bytes) -> None:
        self._of.manual_seed(seed)

    def forget(self) -> None:
        raise AssertionError("it has no twister")

    def restore(self, state: Any) -> None:
        if self._known:
            self._memory.raw = state
        else:
            self._of.set_state(state)


_TORCH_FIRST, _TORCH_LAST = 80, 2624
"""Where a CPU generator of torch keeps its seed, position and words, and the normal numbers (a float and a
double) that it has made and not given out yet."""
_TorchMemory = ctypes.c_char * (_TORCH_LAST - _TORCH_FIRST)


def _torch_is_known() -> bool:
    """Whether this torch keeps its state as we know it: tried on a generator of our own."""
    try:
        one = torch.Generator().manual_seed(0x5EED)
        memory = _TorchMemory.from_address(one._cdata + _TORCH_FIRST)
        seen = [memory.raw]
        for dtype in (torch.float32, torch.float64):
            for _ in range(3):  # a new one, one that was kept, a new one
                torch.randn(1, generator=one, dtype=dtype)
                seen.append(memory.raw)
        torch.rand(1, generator=one)
        told = bytes(one.get_state().tolist())
        seed, left, seeded, position = struct.unpack_from("=QiiQ", told)
        words = struct.unpack_from(f"={WORDS}Q", told, 24)
        found = struct.unpack_from(f"=Qi?3xI{WORDS}I", memory.raw)
        if found != (seed, left, bool(seeded), position, *words) or len(set(seen)) != len(seen):
            return False
        kept, now = memory.raw, torch.rand(4, generator=one)
        memory.raw = kept
        return bool(torch.equal(torch.rand(4, generator=one), now))
    except (AttributeError, RuntimeError, TypeError, ValueError, struct.error):
        return False


class NumpyGenerator:
    """The functions of module `numpy.random`. Bits of another kind than NumPy's own choice were put there by
    the user, and are left alone."""

    name = "numpy"
    takes_words = True

    def __init__(self, numpy: Any) -> None:
        self._random = numpy.random
        self._of: Any = numpy.random.mtrand._rand
        self._bits: Any = None
        self._memory: Any = None
        self._twister: Twister | None = None
        self._clean = b""
        """The words at which no normal number was kept for the next call. That number is not among the words
        and taking it leaves them as they are; making one changes them."""
        self._keeps = _kept_number(numpy.random.RandomState, self._of)
        """Not 0: a normal number is kept. None if it is not known where that is noted."""

    @property
    def twister(self) -> Twister | None:
        return self._twister

    def state(self) -> Any:
        bits = self._of._bit_generator
        if bits is not self._bits:
            is_known = type(bits).__name__ == "MT19937"
            at = bits.ctypes.state_address if is_known else 0
            self._memory = _Memory.from_address(at) if is_known else None
            briefly = is_known and self._keeps is not None and sys.byteorder == "little"
            self._twister = Twister(at, at + 4 * WORDS) if briefly else None
            self._bits, self._clean = bits, b""
        if self._memory is None:
            return None
        words = self._memory.raw
        if self._keeps is not None:
            return (words, self._random.get_state()) if self._keeps.value else words
        if words != self._clean:
            state = self._random.get_state()
            if state[3]:
                return state
            self._clean = words
        return words

    def is_at(self, state: Any) -> bool:
        """What kept a number is taken as drawn from, if it is not known where that is noted."""
        if isinstance(state, bytes):
            return bool(self._memory.raw == state)
        if state is None or self._keeps is None:
            return state is None
        return bool(self._keeps.value) and self._memory.raw == state[0]

    def seed(self, seed: int) -> None:
        if self._memory is not None:
            self._random.seed(seed & 0xFFFF_FFFF)

    def start(self, seed: int, words: bytes) -> None:
        self.seed(seed)
        if self._twister is not None:
            self._twister.begin(words)
        elif self._memory is not None:
            kind, known, *_ = self._random.get_state()
            *put, position = begun(tuple(known.tolist()), words)
            self._random.set_state((kind, put, position, 0, 0.0))

    def forget(self) -> None:
        self._keeps.value = 0

    def restore(self, state: Any) -> None:
        if isinstance(state, bytes) and self._memory is not None:
            self._random.seed(0)  # forgets a normal number that it keeps for the next call
            self._memory.raw = state
        elif state is not None:
            self._random.set_state(state if self._keeps is None else state[1])


def _kept_number(kind: Any, of: Any) -> Any:
    """Where `of`, of that kind, notes that it keeps a normal number; None if that is not found. Tried on an
    object of our own: the note becomes 1 when a number is kept, stands before it, and taken away the next
    number is a new one."""
    if sys.implementation.name != "cpython" or type(of) is not kind:
        return None
    one = kind(0x5EED)
    memory = (ctypes.c_char * kind.__basicsize__).from_address(id(one))
    before = memory.raw
    one.standard_normal()
    after, number = memory.raw, struct.pack("=d", one.get_state()[4])
    at = after.find(number) - 8
    if at < 0 or struct.unpack_from("=i", before, at)[0] or struct.unpack_from("=i", after, at)[0] != 1:
        return None
    note = ctypes.c_int.from_address(id(one) + at)
    note.value = 0
    if one.get_state()[3] or one.standard_normal() == struct.unpack("=d", number)[0] or note.value != 1:
        return None
    return ctypes.c_int.from_address(id(of) + at)


_present: list[Generator] = [PythonGenerator(), TorchGenerator()]
_numpy: NumpyGenerator | None = None


def generators() -> list[Generator]:
    """Those that exist now, NumPy's only once somebody has imported it; the same list until then."""
    global _numpy, _present
    if _numpy is None and hasattr(numpy := sys.modules.get("numpy"), "random"):
        _numpy = NumpyGenerator(numpy)
        _present = [*_present, _numpy]
    return _present
