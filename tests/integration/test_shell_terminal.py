"""`loom shell` on a real terminal (a pty) and a real stack: completion, history, notices while one types."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from loom_home import LOOM, LoomHome, wait_for

PROMPT = "loom>"
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


class Terminal:
    """A program with a terminal of its own."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 150, 0, 0))
        self._master = master
        self._process = subprocess.Popen(
            command,
            env=env | {"TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.raw = ""

    def type(self, keys: str) -> None:
        """Press keys; what was written before is not looked at any more."""
        self.read()
        self.raw = ""
        os.write(self._master, keys.encode())

    def read(self) -> str:
        """What was written since the last key, without control codes. Answers a terminal's questions."""
        while select.select([self._master], [], [], 0.05)[0]:
            try:
                piece = os.read(self._master, 65536).decode(errors="replace")
            except OSError:
                break  # the other end is closed
            if "\x1b[6n" in piece:
                os.write(self._master, b"\x1b[1;1R")
            self.raw += piece
        return _CODES.sub("", self.raw)

    def wait_text(self, *texts: str, timeout_s: float = 150.0) -> str:
        """Which of them came first, with the next prompt after it: between prompts a Ctrl-C is a signal."""
        end = time.monotonic() + timeout_s
        while True:
            for text in texts:
                if (text == PROMPT and PROMPT in self.read()) or PROMPT in self.read().partition(text)[2]:
                    return text
            assert time.monotonic() < end, f"{texts} did not come:\n{self.read()[-3000:]}"

    def wait_end(self) -> int:
        while self._process.poll() is None:
            self.read()
        return self._process.returncode

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)


@pytest.fixture(scope="module")
def loom() -> Iterator[LoomHome]:
    with tempfile.TemporaryDirectory(prefix="loom-shell-") as root:
        made = LoomHome(Path(root) / "home")
        made.loom("up", "--port", "0")
        try:
            yield made
        finally:
            made.loom("down", "--stop-jobs")
        wait_for(lambda: not made.leftovers(), f"nothing left: {made.leftovers()}")


@pytest.fixture
def terminal(loom: LoomHome) -> Iterator[Terminal]:
    made = Terminal([LOOM, "shell"], loom.env)
    try:
        made.wait_text(PROMPT)
        yield made
    finally:
        made.close()


def test_verbs_completion_history_and_the_way_out(loom: LoomHome, terminal: Terminal) -> None:
    job = loom.sleeper(name="steady")
    terminal.type("ps -q\r")
    terminal.wait_text("\nsteady\n")
    wait_for(lambda: _completes(terminal), "the completed word")
    terminal.type("status nope\r")
    terminal.wait_text("There is no job 'nope'")
    terminal.type("half a line\x03")
    terminal.type("exit\r")
    assert terminal.wait_end() == 3, "the code of the last command"
    history = loom.home.root / "shell_history"
    assert "status steady" in history.read_text() and history.stat().st_mode & 0o777 == 0o600
    loom.loom("stop", job, "--kill")


def _completes(terminal: Terminal) -> bool:
    """Nothing is offered when the service takes longer than a person waits, as it may on a busy machine; and
    a prompt draws only what changed, so the completed word is seen by what comes of it."""
    terminal.type("status ste\t")
    end = time.monotonic() + 2.0
    while "ady" not in terminal.read() and time.monotonic() < end:
        pass
    terminal.type("\r")
    return terminal.wait_text("restarts   0 of 10", "There is no job 'ste'") == "restarts   0 of 10"


def test_an_incident_is_told_while_one_types(loom: LoomHome, terminal: Terminal) -> None:
    job = loom.sleeper("--max-restarts", "1000", name="victim")
    terminal.type("status vic")
    wait_for(lambda: _hears(loom, terminal), "a notice of the incident")
    terminal.type("\x15exit\r")
    assert terminal.wait_end() == 0
    loom.loom("stop", job, "--kill")


def _hears(loom: LoomHome, terminal: Terminal) -> bool:
    """Kill what runs until the shell, whose event stream may not be open yet, has told of one."""
    if "was killed by signal 9" in terminal.read():
        return True
    workers = loom.json("status", "victim")["workers"]
    if workers and workers[0]["state"] == "running" and workers[0]["pid"]:
        with contextlib.suppress(ProcessLookupError):  # killed before, and not told yet
            os.kill(workers[0]["pid"], signal.SIGKILL)
    return False
