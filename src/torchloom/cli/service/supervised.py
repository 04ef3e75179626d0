"""One supervised part: its process, and the time of its next start. Decides when, never whether."""

from __future__ import annotations

import subprocess
import time

from torchloom.agent.processes.process import Process
from torchloom.cli.service.parts import PartRecord

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 10.0
PROVEN_S = 5.0
"""A part that lived this long restarts at once; others wait for a backoff."""


class Watched:
    def __init__(self, name: str) -> None:
        self.name = name
        self.process: Process | None = None
        self.failures = 0
        """Deaths in a row, each before the part had lived long enough."""
        self.due_s = 0.0
        """Monotonic time of the next try."""
        self._child: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0

    @property
    def started_s(self) -> float:
        """When it was started or adopted, on the monotonic clock."""
        return self._started_s

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def started(self, record: PartRecord, child: subprocess.Popen[bytes]) -> None:
        # A child's pid cannot be recycled before we wait for it, so the pidfd is certainly the child's.
        self._child = child
        self.process = Process.open(record.pid, record.start_ticks)
        self._started_s = time.monotonic()

    def adopt(self, record: PartRecord) -> bool:
        self._child = None
        self.process = record.hold()
        self._started_s = time.monotonic()
        return self.process is not None

    def ended(self) -> str:
        """How the part ended, in words, once; empty while it runs."""
        if self.process is None or self.process.alive:
            return ""
        how = f"ended (pid {self.process.pid})"
        if self._child is not None:
            code = self._child.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        self.process.close()
        self.process = self._child = None
        return how

    def failed(self, now_s: float) -> None:
        """Set the time of the next try: at once after a long life, later and later after short ones."""
        if self._started_s and now_s - self._started_s >= PROVEN_S:
            self.failures = 0
        delay_s = 0.0 if self.failures == 0 else FIRST_DELAY_S * 2 ** (self.failures - 1)
        self.failures += 1
        self.due_s = now_s + min(LONGEST_DELAY_S, delay_s)
