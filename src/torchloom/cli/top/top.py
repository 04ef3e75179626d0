"""`loom top`: the verb."""

from __future__ import annotations

import sys
from typing import Annotated

from torchloom.cli.declared import option
from torchloom.cli.options import api

EXAMPLES = (
    ("loom top", "then: ? for the keys, / to filter, Enter for the ranks of a job, q to leave"),
    ("loom top --read-only", "without keys that change a job"),
)


def command(
    read_only: Annotated[
        bool, option("--read-only", help="No key changes anything; nothing can be done by mistake.")
    ] = False,
    every: Annotated[str, option("--every", metavar="TIME", help="Between two looks.")] = "1s",
) -> None:
    """Show jobs, ranks and incidents live; act on the chosen job. Works over ssh, from 80 × 24 on."""
    from torchloom.durations import parse_span
    from torchloom.errors import UsageError

    every_s = max(0.2, parse_span(every, "--every"))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("`loom top` needs a terminal", hint="use `loom ps --json` in a pipe")
    from torchloom.cli.top.screen import Top

    endpoint = api().endpoint
    Top(endpoint, every_s, read_only).run()
