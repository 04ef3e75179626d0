"""`loom delete`: forget jobs that have ended."""

from __future__ import annotations

from typing import Annotated

import typer

from torchloom.cli.options import JobsArgument, JsonOption, api

EXAMPLES = (
    ("loom delete train-3f9a", "forget one job and its logs"),
    ("loom delete train-3f9a --force", "kill it first, if it runs"),
)


def command(
    jobs: JobsArgument,
    force: Annotated[bool, typer.Option("--force", help="Kill a job that still runs.")] = False,
    keep_logs: Annotated[bool, typer.Option("--keep-logs", help="Leave its log files on the nodes.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Forget jobs that have ended, with their logs. Checkpoints always stay."""
    from torchloom.cli import output

    client = api()
    for job in dict.fromkeys(jobs):
        client.delete(job, force=force, keep_logs=keep_logs)
        if as_json:
            output.show_line({"job": job, "deleted": True})
        else:
            print(f"{job} deleted")
