"""The spawner of a job whose stack is only starting. Importing torch takes longer than starting everything
else, so `loom run` begins with it; the agent finds this spawner as it finds those of an earlier agent.

Chooses nothing: the agent's `recipe` names the spawner. One that no agent finds ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from torchloom.agent.processes import spawner_files
from torchloom.agent.processes.recipe import recipe
from torchloom.cli.service import parts
from torchloom.cli.service.free_core import FEW
from torchloom.home import Home
from torchloom.spawner.launch import socket_path, start_spawner

if TYPE_CHECKING:
    from torchloom.client.schema import JobRequest

END_WITHIN_S = 5.0
LOADED_WITHIN_S = 0.5


class EarlySpawner:
    def __init__(self, home: Home, process: subprocess.Popen[bytes], path: Path, loading: int) -> None:
        self._home = home
        self._process = process
        self._path = path
        self._loading = loading
        """A pipe whose other end is closed once torch's library is loaded."""

    @classmethod
    def begin(cls, home: Home, body: JobRequest) -> EarlySpawner | None:
        """Start it, unless a running stack will, or workers need none; returns at once."""
        if body.get("spawn") == "cold" or parts.living(home, "supervisor") or parts.living(home, "agent"):
            return None
        wanted = recipe(
            body.get("interpreter") or "", body.get("env") or {}, tuple(body.get("preload") or ()), "warm"
        )
        path = socket_path(home.sockets, wanted.key)
        reading, writing = os.pipe()
        try:
            process = start_spawner(
                home.sockets,
                wanted.key,
                wanted.interpreter,
                wanted.env,
                preload=wanted.preload,
                loaded_fd=writing,
            )
        except OSError:
            os.close(reading)
            return None  # the agent will try again and report why
        finally:
            os.close(writing)
        return cls(home, process, path, reading)

    def wait_for_library(self) -> None:
        """Let it load torch's library first where cores are few: it needs two of them for that, and what the
        stack does meanwhile makes the start longer. The stack is ready long before torch is imported."""
        if len(os.sched_getaffinity(0)) in FEW:
            select.select([self._loading], [], [], LOADED_WITHIN_S)  # at its end, too, it is closed

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        """Collect its exit status; end it if neither an agent nor a worker is there."""
        from torchloom.cli.service import cleanup

        os.close(self._loading)
        alone = parts.living(self._home, "supervisor") is None and parts.living(self._home, "agent") is None
        if not self.ended and alone and not cleanup.living_workers(self._home):
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_WITHIN_S)
            spawner_files.sweep(self._path)
            with contextlib.suppress(OSError):
                self._home.sockets.rmdir()
