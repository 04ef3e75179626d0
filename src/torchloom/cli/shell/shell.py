"""`loom shell`: the verbs at a prompt, or from a pipe. Owns reading lines and running them, no verb.

On a terminal there are history, completion and live notices; in a pipe it reads one command a line, and the
exit code is that of the last one, as with a shell.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable

import typer

from torchloom.cli import main
from torchloom.cli.options import api

EXAMPLES = (
    ("loom shell", "then: ps, status JOB, logs JOB -f, help, exit"),
    ("echo 'ps --json' | loom shell", "from a pipe"),
)

NOT_HERE = frozenset({"shell", "weaver", "agent", main.COMPLETE})
"""Verbs that would take over the process."""
WORDS = ("help", "exit", "quit")
"""What the shell understands besides the verbs."""


def command() -> None:
    """An interactive monitor: the same verbs, history, completion, incidents while you type."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        from torchloom.cli.shell.prompt import Monitor

        code = Monitor(api().endpoint, run_line).run()
    else:
        code = from_pipe(sys.stdin.readline, run_line)
    raise typer.Exit(code)


class Leave(Exception):
    """The user has had enough."""


def from_pipe(read: Callable[[], str], run: Callable[[str], int]) -> int:
    """Run every line until the end; the code of the last command."""
    code = 0
    while line := read():
        try:
            code = run(line)
        except Leave:
            break
        sys.stdout.flush()
    return code


def run_line(line: str) -> int:
    """Run one command; its exit code. Raises Leave."""
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
            print(f"loom: `{verb}` cannot be used inside of the shell.", file=sys.stderr)
            return 2
    # --home and --context hold for one command only.
    before = dict(os.environ)
    try:
        return main.run(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    finally:
        os.environ.clear()
        os.environ.update(before)
