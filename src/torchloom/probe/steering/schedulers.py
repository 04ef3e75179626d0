"""torch's learning-rate schedulers work on the script's own values, not on ours.

A scheduler reads `group["lr"]` and multiplies it. While ours stays in a param group, the `step` and
`__init__` of every scheduler class run with the script's own values in place. The classes are wrapped when a
value stays for the first time, so a job that nobody steers keeps torch's own methods. A method that dynamo
traces runs as it is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

_METHODS = ("__init__", "step")


class Schedulers:
    """The scheduler classes of one process. `hide` and `show` are those of Overrides, guarded."""

    def __init__(self, hide: Callable[[], None], show: Callable[[], None]) -> None:
        self._hide, self._show = hide, show
        self._wrapped: set[type] = set()

    def wrap(self) -> None:
        """Wrap the classes that exist now and are not wrapped yet."""
        torch, module = sys.modules.get("torch"), sys.modules.get("torch.optim.lr_scheduler")
        if torch is None or module is None:
            return
        for kind in _all_subclasses(module.LRScheduler):
            if kind in self._wrapped:
                continue
            self._wrapped.add(kind)
            for name in _METHODS:
                method = kind.__dict__.get(name)
                if callable(method):
                    setattr(kind, name, self._wrapping(method, torch.compiler.is_compiling))

    def _wrapping(self, method: Callable[..., Any], is_compiling: Callable[[], bool]) -> Callable[..., Any]:
        @functools.wraps(method)
        def on_own_values(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return method(*args, **kwargs)
            self._hide()
            try:
                return method(*args, **kwargs)
            finally:
                self._show()

        return on_own_values


def _all_subclasses(kind: type) -> Iterator[type]:
    yield kind
    below: type
    for below in kind.__subclasses__():
        yield from _all_subclasses(below)
