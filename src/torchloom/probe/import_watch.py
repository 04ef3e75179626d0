"""Tells when a module has been imported, because a cold worker has no torch yet and the probe imports none.

A finder in front of `sys.meta_path` lets the usual finders find the module and calls back once it has been
executed. It removes itself once it expects nothing more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torchloom.probe.guard import Guard


class Arrivals:
    """The modules that are waited for, each with what to do when it is there."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._expected: dict[str, Callable[[ModuleType], Any]] = {}
        self._find = guard.wrap(self._find_expected)

    def expect(self, name: str, then: Callable[[ModuleType], Any]) -> None:
        """Call `then(module)` once the module is imported: at once if it is already."""
        then = self._guard.wrap(then)
        module = sys.modules.get(name)
        if module is not None:
            then(module)
            return
        self._expected[name] = then
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def forget(self) -> None:
        """Stop expecting imports."""
        self._expected.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Part of Python's finder protocol."""
        if name not in self._expected:
            return None
        spec: ModuleSpec | None = self._find(name, path, target)
        return spec

    def _find_expected(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._call_after_execution(spec.loader, name)
                return spec
        return None

    def _call_after_execution(self, loader: Any, name: str) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            del loader.exec_module  # the loader is the module's for good: leave it as it was
            then = self._expected.pop(name, None)
            if not self._expected:
                self.forget()
            if then is not None:
                then(module)

        loader.exec_module = exec_module
