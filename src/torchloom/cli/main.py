"""Finds the verb and turns errors into one sentence and an exit code. Knows the verbs by name only.

Modules are imported when their verb is used. Verbs on the way to a job's first step (`run`, `submit`, and the
parts themselves) have `main(argv)` and parse their options without typer, because importing it takes as long
as all the rest of them; `run` must also take options exactly as torchrun does.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module

from torchloom.errors import LoomError

PLAIN = {
    "run": "Run a training script on several workers and follow it; takes torchrun's flags.",
    "submit": "Start a job like `run` and return at once with its id.",
    "weaver": "Run one control service (production).",
    "agent": "Run this host's agent (production).",
}

_PLAIN_ERRORS = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT)


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Do what the command line says; the exit code."""
    try:
        if argv and argv[0] in PLAIN:
            return int(import_module(f"torchloom.cli.{argv[0]}").main(argv[1:]))
        from torchloom.cli.app import run_typer

        return run_typer(argv)
    except LoomError as error:
        print(f"loom: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `loom logs | head`: whoever reads has had enough. Nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in _PLAIN_ERRORS:
            raise
        print(f"loom: {error.filename or 'a file'} cannot be written: {error.strerror}.", file=sys.stderr)
        return 4
