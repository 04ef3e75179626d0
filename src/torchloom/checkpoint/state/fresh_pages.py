"""Making memory beside the training: fresh pages take many times as long as a copy into pages that are there.

Owns the thread that does it, which lives as long as that takes. While it runs, it owns the memory
it makes; callers either wait (`wait`) or do without. What does not fit is reported once (`problem`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from torchloom.checkpoint.state.threads import beside

INLINE = 8 << 20
"""Bytes that are quicker made, or summed, at once than by a thread."""


class Making:
    """At most one thing at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._problem: OSError | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, size: int, work: Callable[[], None]) -> None:
        """Make `size` bytes by `work`; nothing happens while something else is being made."""
        if self.busy:
            return
        self._thread = beside(lambda: self._make(work), "loom-memory") if size > INLINE else None
        if self._thread is None:
            self._make(work)

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def problem(self) -> OSError | None:
        """Why the last thing could not be made, once."""
        found, self._problem = self._problem, None
        return found

    def _make(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self._problem = error
