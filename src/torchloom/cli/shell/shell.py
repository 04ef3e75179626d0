"""`loom shell`: runs verbs from a prompt or a pipe. Owns reading and running lines; implements no verb.

On a terminal it has history, completion and live notices. From a pipe it reads one command per line and exits
with the code of the last one, like a shell.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable

from torchloom.cli import main
from torchloom.cli.declared import EndVerb
from torchloom.cli.options import api

EXAMPLES = (
    ("loom shell", "then: ps, status JOB, logs JOB -f, help, exit"),
    ("echo 'ps --json' | loom shell", "from a pipe"),
)

NOT_HERE = frozenset({"shell", "top", "weaver", "agent", "notify", main.COMPLETE})
"""Verbs that need a process of their own."""
WORDS = ("help", "exit", "quit")
"""Commands of the shell besides the verbs."""


def command() -> None:
    """Open an interactive shell: all verbs, history, completion, and incidents as they happen."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        from torchloom.cli.shell.prompt import Monitor

        code = Monitor(api().endpoint, run_line).run()
    else:
        code = from_pipe(sys.stdin.readline, run_line)
    raise EndVerb(code)


class Leave(Exception):
    """The user wants to leave the shell."""


def from_pipe(read: Callable[[], str], run: Callable[[str], int]) -> int:
    """Run every line. Returns the exit code of the last command."""
    code = 0
    while line := read():
        try:
            code = run(line)
        except Leave:
            break
        sys.stdout.flush()
    return code


def run_line(line: str) -> int:
    """Run one command and return its exit code. Raises Leave."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        print(f"loom: {error}", file=sys.stderr)
        return 2
    if words[:1] == ["loom"]:
        del words[0]
    if not words:
        return 0
    match words[0]:
        case "exit" | "quit":
            raise Leave
        case "help" | "?":
            words = [*words[1:], "--help"]
        case verb if verb in NOT_HERE:
            print(f"loom: `{verb}` cannot be used inside the shell.", file=sys.stderr)
            return 2
    # --home and --context apply to one command only.
    before = dict(os.environ)
    try:
        return main.run(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    finally:
        os.environ.clear()
        os.environ.update(before)
