"""Shortcuts for what importing torch does most often and in the same way every time. They give equal results,
are seen by one module of the standard library each, and are gone when the imports are done.

- `dataclasses` writes functions as text and compiles them: their code is kept (`compiled_texts`).
- `inspect` resolves the file of each of 1,800 modules, all links on its way from the root: the way to a
  directory is resolved once.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torchloom.spawner.compiled_texts import CompiledTexts


@contextmanager
def shortcuts(texts: CompiledTexts) -> Iterator[None]:
    """Only for the imports inside: no worker may be forked in it."""
    in_dataclasses, in_inspect = vars(dataclasses), vars(inspect)
    usual_os = in_inspect.get("os")
    if usual_os is not os or "exec" in in_dataclasses:
        yield  # an unknown Python, or somebody else's substitute: leave it alone
        return
    in_dataclasses["exec"] = _Execution(texts)
    in_inspect["os"] = _OsOfInspect()
    try:
        yield
    finally:
        in_inspect["os"] = usual_os
        in_dataclasses.pop("exec", None)


class _Execution:
    """`exec`, with the code of a text that was compiled before."""

    def __init__(self, texts: CompiledTexts) -> None:
        self._texts = texts

    def __call__(self, source: Any, globals: Any = None, locals: Any = None) -> None:
        caller = sys._getframe(1)
        if locals is None:
            locals = caller.f_locals if globals is None else globals
        code = self._texts.code(source) if isinstance(source, str) else source
        exec(code, caller.f_globals if globals is None else globals, locals)


class _OsOfInspect:
    """The module `os` as `inspect` sees it."""

    def __init__(self) -> None:
        self.path = _PathOfInspect()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class _PathOfInspect:
    """The module `os.path`, which has resolved the directory before."""

    def __init__(self) -> None:
        self._resolved: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os.path, name)

    def realpath(self, path: str, **options: Any) -> str:
        directory, name = os.path.split(path)
        if options or not directory or name in ("", os.curdir, os.pardir):
            return os.path.realpath(path, **options)
        if directory not in self._resolved:
            self._resolved[directory] = os.path.realpath(directory)
        resolved = os.path.join(self._resolved[directory], name)
        return os.path.realpath(path) if os.path.islink(resolved) else resolved
