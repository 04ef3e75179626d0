"""Keeps what `dataclasses` compiles: importing torch makes it write and compile 2,500 small functions, the
same ones each time (0.15 s).

The file is a cache as .pyc files are: private, bounded, written atomically, not written where Python is told
to write no bytecode. A function's text is its key, so that nothing in it can be out of date; a file that is
damaged, foreign or of another Python is not used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import CodeType

from torchloom.private import make_private, why_not_ours, why_not_private

_MOST_BYTES = 16 << 20
_DIGEST_BYTES = 32
_MAGIC = b"loom-texts-1\n"


def default_path() -> Path:
    """In the user's cache directory: it outlives every LOOM_HOME."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    python = f"{sys.implementation.cache_tag}-{importlib.util.MAGIC_NUMBER.hex()}-{sys.flags.optimize}"
    return Path(home) / "torchloom" / "compiled" / f"dataclasses-{python}.bin"


class CompiledTexts:
    """Texts and their code: those of the file, and those compiled since."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = _read(path)
        self._used: dict[str, CodeType] = {}
        self._new = False

    def code(self, text: str) -> CodeType:
        found = self._used.get(text) or self._kept.get(text)
        if found is None:
            found = compile(text, "<string>", "exec", dont_inherit=True)
            self._new = True
        self._used[text] = found
        return found

    def save(self) -> None:
        """Write the file if something is new; then forget everything."""
        kept, used, new = self._kept, self._used, self._new
        self._kept, self._used, self._new = {}, {}, False
        if not new or sys.dont_write_bytecode:
            return
        for texts in (kept | used, used):  # the texts of other versions go first when it becomes too large
            payload = marshal.dumps(texts)
            if len(payload) <= _MOST_BYTES:
                with suppress(OSError):
                    _write(self._path, payload)
                return


def _read(path: Path) -> dict[str, CodeType]:
    try:
        if why_not_private(path.parent):
            return {}
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return {}
    with open(descriptor, "rb") as file:
        if why_not_ours(descriptor) or os.fstat(descriptor).st_mode & 0o077:
            return {}
        data = file.read(_MOST_BYTES + len(_MAGIC) + _DIGEST_BYTES + 1)
    magic, digest, payload = (
        data[: len(_MAGIC)],
        data[len(_MAGIC) :][:_DIGEST_BYTES],
        data[len(_MAGIC) + _DIGEST_BYTES :],
    )
    if magic != _MAGIC or digest != _digest(payload):  # marshal may crash on what it has not written
        return {}
    try:
        texts = marshal.loads(payload)  # ours, whole, and as private as a .pyc file
    except (ValueError, EOFError, TypeError):
        return {}
    return texts if isinstance(texts, dict) else {}


def _write(path: Path, payload: bytes) -> None:
    make_private(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(_MAGIC + _digest(payload) + payload)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()
