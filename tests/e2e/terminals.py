"""A command in a terminal of its own, for tests that look at what a person sees."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import threading


class Terminal:
    """Runs at once; a thread reads what it writes."""

    def __init__(self, env: dict[str, str], *command: str) -> None:
        self.seen = b""
        self._ended = False
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.execve(command[0], list(command), env | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while select.select([self._master], [], [], 240)[0]:
                piece = os.read(self._master, 65536)
                if not piece:
                    return
                self.seen += piece
        except OSError:
            return  # the other end is closed

    @property
    def text(self) -> str:
        return self.seen.decode(errors="replace")

    def wait(self) -> int:
        """The exit code of the command, once it has ended."""
        _, status = os.waitpid(self.pid, 0)
        self._ended = True
        self._reader.join(60)
        return os.waitstatus_to_exitcode(status)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:  # the test has failed
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._master)


def ranks_shown(text: str, what: str) -> set[str]:
    """Ranks of which `loom` showed a line that begins with this pattern."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return set(re.findall(rf"\[rank (\d)\] {what}", plain))
