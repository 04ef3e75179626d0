"""Compiles the native libraries beside the first jobs of a torch that has none, for the jobs that follow.

Owns the process that does it (`python -m torchloom.probe.native --beside`): in a session of its own, with the
cores that nobody else wants, ended with the spawner. Whoever installed torchloom with pip never calls a
compiler, and without the native recorder few hangs name a rank.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable

_END_WITHIN_S = 1.0
"""For the build to remove what it has written; a compiler ends at once."""


class BuildBeside:
    """At most one build in a spawner's life."""

    def __init__(self, loaded: Callable[[], None] | None = None) -> None:
        """`loaded`: what to do with the library once it is there; else it is loaded here."""
        self._pid: int | None = None
        self._load = loaded or load_native

    def begin(self) -> None:
        """Compile what is missing, unless nobody wants it or it cannot be."""
        from torchloom.compiled import compiler  # a spawner that warms up has no time for it
        from torchloom.probe import native

        unwanted = os.environ.get("LOOM_BUILD") == "0"
        if self._pid is not None or unwanted or native.find() is not None or compiler() is None:
            return
        command = [sys.executable, "-P", "-m", "torchloom.probe.native", "--beside"]
        try:
            self._pid = os.posix_spawn(sys.executable, command, os.environ, setsid=True)
        except OSError as error:
            print(f"spawner: the native recorder cannot be compiled: {error.strerror}", flush=True)
            return
        print("spawner: the native recorder is being compiled beside the jobs", flush=True)

    def look(self) -> None:
        """Load the library once it is there: the next workers have it."""
        if self._pid is None or _lives(self._pid):
            return
        self._pid = None
        self._load()

    def end(self) -> None:
        """Nothing is left behind; the next spawner begins anew."""
        if self._pid is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(self._pid, signal.SIGTERM)
            until = time.monotonic() + _END_WITHIN_S
            while _lives(self._pid) and time.monotonic() < until:
                time.sleep(0.01)
            os.killpg(self._pid, signal.SIGKILL)
        self._pid = None


def load_native() -> None:
    """Map the native recorder here, once, rather than in every worker; nothing if there is none."""
    importlib.import_module("torchloom.probe.observe.recorder").load_native()


def _lives(pid: int) -> bool:
    """Children are waited for elsewhere, too (children.py); its number is not used again while it is ours."""
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False
