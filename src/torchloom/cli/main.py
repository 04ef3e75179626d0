"""Finds the verb and turns errors into one sentence and an exit code. Knows the verbs by name only.

Modules are imported when their verb is used. Importing typer takes longer than everything else most verbs do,
so it is used only for help and for command lines that parse.py cannot read, errors among them. `run`,
`submit` and the parts have `main(argv)`: `run` must parse options exactly as torchrun does.
"""

from __future__ import annotations

import errno
import os
import sys

from torchloom import terminal
from torchloom.cli.verbs import LOCAL_VERBS, VERBS, module_of
from torchloom.errors import LoomError, UsageError

PLAIN = {
    "run": "Run a training script on several workers and follow it; takes torchrun's flags.",
    "submit": "Start a job like `run` and return its id at once.",
    "sbatch": "Write a batch script that runs a job under Slurm; takes the flags of `run`.",
    "pod": "Run a training pod in Kubernetes: its agent, and the job in the first one (production).",
    "kubernetes": "Tell the control service what Kubernetes knows of its pods (production).",
    "weaver": "Run one control service (production).",
    "agent": "Run this host's agent (production).",
    "notify": "Deliver incidents to webhooks (production).",
}

COMPLETE = "__complete"
"""What the completion scripts of shells call; not a verb for people."""

_PLAIN_ERRORS = (
    errno.ENOSPC,
    errno.EROFS,
    errno.EACCES,
    errno.EDQUOT,
    errno.ENOTDIR,
    errno.ENOENT,
    errno.EPERM,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)
_BEFORE_THE_VERB = ("--context", "--home")


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Run the command line and return the exit code."""
    try:
        return _run(argv)
    except LoomError as error:
        from torchloom.cli.show.wording import sentence

        print(f"loom: {sentence(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        drop_stdout()
        return 0
    except OSError as error:
        if error.errno not in _PLAIN_ERRORS:
            raise
        print(
            f"loom: {error.filename or 'a file'} cannot be read or written: {error.strerror}.",
            file=sys.stderr,
        )
        return 4


def drop_stdout() -> None:
    """The reader of stdout has closed the pipe: write nothing more there, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    terminal.in_use = (sys.stdout.isatty() or sys.stderr.isatty()) and os.environ.get("LOOM_RAW") != "1"
    argv = place_behind_verb(argv)
    if argv and argv[0] in PLAIN:
        return int(module_of(argv[0]).main(argv[1:]))
    if argv and argv[0] == COMPLETE:
        from torchloom.cli.shell.complete import print_candidates

        return print_candidates(argv[1:])
    code = run_plainly(argv)
    if code is not None:
        return code
    from torchloom.cli.app import run_typer

    return run_typer(argv)


def run_plainly(argv: list[str]) -> int | None:
    """Run a verb whose command line is right, without typer; None if typer must read it."""
    if not argv or argv[0] not in VERBS:
        return None
    from torchloom.cli.options import with_place
    from torchloom.cli.parse import NotPlain, read

    module, rest = module_of(argv[0]), argv[1:]
    command = getattr(module, "command", None)
    if (parts := getattr(module, "SUBVERBS", None)) is not None:
        if rest and rest[0] not in parts and not rest[0].startswith("-"):
            rest = [getattr(module, "DEFAULT", ""), *rest]
        command, rest = parts.get(rest[0] if rest else ""), rest[1:]
    if command is None:
        return None
    whole = with_place(command, argv[0] in LOCAL_VERBS)
    try:
        given = read(whole, rest)
    except NotPlain:
        return None
    try:
        whole(**given)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def place_behind_verb(argv: list[str]) -> list[str]:
    """`loom --context prod ps` means `loom ps --context prod`: people write both."""
    ahead: list[str] = []
    rest = list(argv)
    while rest and rest[0].partition("=")[0] in _BEFORE_THE_VERB:
        if "=" in rest[0]:
            ahead.append(rest.pop(0))
            continue
        if len(rest) < 2:
            raise UsageError(f"{rest[0]} needs a value.")
        ahead += rest[:2]
        del rest[:2]
    # After the verb; for two-word verbs, after the second word.
    at = 2 if rest[:1] in (["context"], ["token"]) and len(rest) > 1 else 1
    return rest[:at] + ahead + rest[at:]
