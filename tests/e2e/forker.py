"""The test's end of a process that has imported torch once and forks workers: nobody waits for it for ever.

The process reads one request a line and answers each with a line that repeats the request's number, so an
answer that nobody waited for is never taken for another one's:
    {"id": 1, "start": [order, …]}  →  {"id": 1, "answer": [pid, …]}
    {"id": 2, "wait": [pid, …]}     →  {"id": 2, "answer": [exit code, …]}
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIMIT_S = 240.0
"""For workers that end within seconds on a quiet machine: only there against a hang."""
STACKS_S = 60.0
DUMP = signal.SIGRTMAX - 1
"""Makes a worker write the Python stacks of its threads to its errors; ends one without `show_stacks`."""


class Hung(AssertionError):
    """Workers did not end in time. They are killed; the message has their stacks."""


class Workers:
    """Workers that were started together. Nobody else reaps them, so their pids stay theirs."""

    def __init__(self, forker: Forker, pids: list[int]) -> None:
        self._forker, self.pids = forker, pids
        self._held = {pid: os.pidfd_open(pid) for pid in pids}
        self._codes: dict[int, int] = {}

    def over(self, pid: int | None = None) -> bool:
        """Whether all have ended, or the one that is named."""
        looked_at = self._held.values() if pid is None else [self._held[pid]] if pid in self._held else []
        return all(select.select([held], [], [], 0)[0] for held in looked_at)

    def codes(self, within_s: float = LIMIT_S) -> list[int]:
        """Their exit codes, once all have ended; `Hung` with the stacks of all if they do not in time."""
        deadline = time.monotonic() + within_s
        for held in list(self._held.values()):
            if not select.select([held], [], [], max(0.0, deadline - time.monotonic()))[0]:
                found = self.stacks()
                self.kill()
                raise Hung(f"workers {self.pids} did not end within {within_s:g} s\n{found}")
        return [self.code(pid) for pid in self.pids]

    def code(self, pid: int) -> int:
        """The exit code of a worker that has ended, or is about to."""
        if pid not in self._codes:
            (self._codes[pid],) = self._forker.ask({"wait": [pid]})
            os.close(self._held.pop(pid))
        return self._codes[pid]

    def kill(self) -> None:
        """No worker is left; those that have ended stay as they ended."""
        for held in self._held.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(held, signal.SIGKILL)
        for pid in self.pids:
            self.code(pid)

    def stacks(self) -> str:
        """What the workers that live are doing: Python and native stacks, and the state of each thread."""
        return "\n".join(stacks_of(pid) for pid in self.pids if not self.over(pid))


def stacks_of(pid: int) -> str:
    found = [f"--- process {pid}"]
    for task in sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            found.append(
                f"thread {task.name} {(task / 'comm').read_text().strip()}: {state}, {_inside(task)}"
            )
    command = [Path(sys.executable).with_name("py-spy"), "dump", "--native", "--pid", str(pid)]
    try:
        dumped = subprocess.run(
            command, capture_output=True, text=True, timeout=STACKS_S, check=True, errors="replace"
        )
        found += [line[:200] for line in dumped.stdout.splitlines()]
    except (OSError, subprocess.SubprocessError) as error:
        found.append(f"py-spy: {error}")
        os.kill(pid, DUMP)
        time.sleep(1)  # it is killed next
    return "\n".join(found)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def _inside(task: Path) -> str:
    """Where in the kernel a thread waits; not every kernel says it."""
    for name in ("stack", "wchan"):
        with contextlib.suppress(OSError):
            if said := (task / name).read_text().strip():
                return said.splitlines()[0]
    return "not known"


class Forker:
    """A process that forks workers."""

    def __init__(self, command: Sequence[str], env: dict[str, str], cwd: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *command], env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin and self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._requests = 0
        self._read = b""
        self._started: list[Workers] = []

    def start(self, orders: Sequence[dict[str, Any]]) -> Workers:
        """Several may run at a time; `end` ends those that are left."""
        self._started = [workers for workers in self._started if not workers.over()]
        self._started.append(Workers(self, self.ask({"start": list(orders)})))
        return self._started[-1]

    def end(self) -> None:
        """End the workers that a test has left, so that they are in nobody's way."""
        for workers in self._started:
            if not workers.over():
                print(f"left running, and killed now:\n{workers.stacks()}", file=sys.stderr)
            workers.kill()
        self._started = []

    def close(self) -> None:
        try:
            self.end()
        finally:
            self._stdin.close()
            try:
                self._process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._stdout.close()

    def ask(self, request: dict[str, Any]) -> Any:
        self._requests += 1
        self._stdin.write(json.dumps({"id": self._requests, **request}).encode() + b"\n")
        self._stdin.flush()
        deadline = time.monotonic() + LIMIT_S
        while True:
            for answer in self._read_lines(deadline):
                if answer["id"] == self._requests:
                    return answer["answer"]

    def _read_lines(self, deadline: float) -> list[dict[str, Any]]:
        if not select.select([self._stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError(f"the process that forks workers did not answer request {self._requests}")
        read = os.read(self._stdout.fileno(), 65536)
        if not read:
            raise AssertionError(f"the process that forks workers has ended: {self._process.wait(LIMIT_S)}")
        *lines, self._read = (self._read + read).split(b"\n")
        return [json.loads(line) for line in lines]


def next_order() -> dict[str, Any] | None:
    """The other end. Returns only in a child, with its order; None at the end of the parent's input."""
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in request["wait"]]
        else:
            answer = []
            for order in request["start"]:
                pid = os.fork()
                if pid == 0:
                    return dict(order)
                answer.append(pid)
        print(json.dumps({"id": request["id"], "answer": answer}), flush=True)
    return None


def show_stacks(path: str) -> None:
    """In a child: have its stacks written to a file when it is asked for them."""
    faulthandler.register(DUMP, open(path, "a"), all_threads=True)  # noqa: SIM115 for as long as it lives
