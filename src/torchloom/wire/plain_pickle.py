"""Reads pickles that hold plain data only: dicts, lists, tuples, strings, numbers. Runs nothing from them.

A pickle is a program. Python's own reader calls whatever the file names, and a subclass that refuses names
still allocates what the file asks for. This one knows the opcodes that plain data needs, in the forms that
torch's C++ pickler and Python's protocols 2 to 5 write, and counts every value against a limit.
"""

from __future__ import annotations

from struct import unpack_from
from typing import Any

from msgspec import Struct

from torchloom.errors import DumpUnreadable


class ReadLimits(Struct, frozen=True):
    """What one file may cost its reader."""

    size: int = 256 * 2**20
    """Bytes."""
    values: int = 8_000_000
    """Values on the stack, references to earlier ones included."""


_MARK = object()
_LONGEST_INTEGER = 16
"""Bytes: a larger number is no count, size or time."""

_FIXED: dict[int, tuple[str, int]] = {
    ord("K"): ("<B", 1),
    ord("M"): ("<H", 2),
    ord("J"): ("<i", 4),
    ord("G"): (">d", 8),
}
"""Numbers of a fixed width: BININT1, BININT2, BININT, BINFLOAT."""
_TEXTS: dict[int, tuple[str, int]] = {ord("X"): ("<I", 4), 0x8C: ("<B", 1), 0x8D: ("<Q", 8)}
"""BINUNICODE, SHORT_BINUNICODE, BINUNICODE8: a length and UTF-8."""
_CONSTANTS: dict[int, object] = {ord("N"): None, 0x88: True, 0x89: False}


def loads(data: bytes, limits: ReadLimits = ReadLimits()) -> object:
    """The value in a pickle. Raises DumpUnreadable for anything that is not plain data."""
    if len(data) > limits.size:
        raise DumpUnreadable(f"it is larger than {limits.size // 2**20} MB")
    try:
        return _Reader(data, limits.values).read()
    except DumpUnreadable:
        raise
    except (IndexError, ValueError, TypeError, KeyError, OverflowError) as error:
        # A truncated file, a length past its end, a bad UTF-8 string, a list as a key.
        raise DumpUnreadable("it is damaged, or not a dump") from error
    except Exception as error:
        if type(error).__name__ == "error":  # struct.error
            raise DumpUnreadable("it is damaged, or not a dump") from error
        raise


class _Reader:
    def __init__(self, data: bytes, values: int) -> None:
        self._data = data
        self._at = 0
        self._left = values
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def read(self) -> object:
        data, stack, memo = self._data, self._stack, self._memo
        while True:
            code = data[self._at]
            self._at += 1
            self._left -= 1
            if self._left < 0:
                raise DumpUnreadable("it holds too many values")
            if code in _FIXED:
                form, width = _FIXED[code]
                stack.append(unpack_from(form, data, self._at)[0])
                self._at += width
            elif code in _TEXTS:
                stack.append(self._take(self._number(*_TEXTS[code])).decode("utf-8"))
            elif code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
            elif code == ord("h"):  # BINGET
                stack.append(memo[self._number("<B", 1)])
            elif code == ord("q"):  # BINPUT
                memo[self._number("<B", 1)] = self._top()
            elif code == ord("j"):  # LONG_BINGET
                stack.append(memo[self._number("<I", 4)])
            elif code == ord("r"):  # LONG_BINPUT
                memo[self._number("<I", 4)] = self._top()
            elif code == 0x94:  # MEMOIZE
                memo[len(memo)] = self._top()
            elif code == ord("("):
                stack.append(_MARK)
            elif code == ord("}"):
                stack.append({})
            elif code == ord("]"):
                stack.append([])
            elif code == ord(")"):
                stack.append(())
            elif code in (0x85, 0x86, 0x87):  # TUPLE1, TUPLE2, TUPLE3
                self._tuple(code - 0x84)
            elif code == ord("t"):
                stack.append(tuple(self._since_mark()))
            elif code == ord("e"):  # APPENDS
                items = self._since_mark()
                self._container(list).extend(items)
            elif code == ord("a"):
                item = self._pop()
                self._container(list).append(item)
            elif code == ord("u"):  # SETITEMS
                self._set(self._since_mark())
            elif code == ord("s"):
                value, key = self._pop(), self._pop()
                self._set([key, value])
            elif code == 0x8A:  # LONG1
                self._integer()
            elif code == 0x80:  # PROTO
                if self._number("<B", 1) > 5:
                    raise DumpUnreadable("its pickle protocol is not known")
            elif code == 0x95:  # FRAME
                self._at += 8
            elif code == ord("."):
                return self._pop()
            else:
                raise DumpUnreadable(f"it holds something other than plain data (opcode 0x{code:02x})")

    def _number(self, form: str, width: int) -> int:
        value = unpack_from(form, self._data, self._at)[0]
        self._at += width
        return int(value)

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise DumpUnreadable("it is damaged, or not a dump")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _integer(self) -> None:
        size = self._number("<B", 1)
        if size > _LONGEST_INTEGER:
            raise DumpUnreadable("it holds a number of an absurd size")
        self._stack.append(int.from_bytes(self._take(size), "little", signed=True))

    def _top(self) -> Any:
        top = self._stack[-1]
        if top is _MARK:
            raise DumpUnreadable("it is damaged, or not a dump")
        return top

    def _pop(self) -> Any:
        top = self._top()
        del self._stack[-1]
        return top

    def _since_mark(self) -> list[Any]:
        stack = self._stack
        for at in range(len(stack) - 1, -1, -1):
            if stack[at] is _MARK:
                items = stack[at + 1 :]
                del stack[at:]
                return items
        raise DumpUnreadable("it is damaged, or not a dump")

    def _tuple(self, size: int) -> None:
        items = [self._pop() for _ in range(size)]
        self._stack.append(tuple(reversed(items)))

    def _container(self, kind: type) -> Any:
        top = self._top()
        if type(top) is not kind:
            raise DumpUnreadable("it is damaged, or not a dump")
        return top

    def _set(self, items: list[Any]) -> None:
        if len(items) % 2:
            raise DumpUnreadable("it is damaged, or not a dump")
        into = self._container(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, int):
                raise DumpUnreadable("it has a key that is neither text nor a number")
            into[key] = value
