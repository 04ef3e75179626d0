"""`loom delete`: delete jobs that have ended."""

from __future__ import annotations

from typing import Annotated

from torchloom.cli.declared import option
from torchloom.cli.options import JobsArgument, JsonOption, api

EXAMPLES = (
    ("loom delete train-3f9a", "delete one job and its logs"),
    ("loom delete train-3f9a --force", "kill it first if it is running"),
    ("loom delete train-3f9a --checkpoints", "delete its checkpoints too"),
)

REMOVE_WITHIN_S = 330.0
"""A store may hold thousands of objects; a little longer than the service itself waits."""


def command(
    jobs: JobsArgument,
    force: Annotated[bool, option("--force", help="Kill the job first if it is running.")] = False,
    keep_logs: Annotated[bool, option("--keep-logs", help="Keep its log files on the nodes.")] = False,
    checkpoints: Annotated[
        bool, option("--checkpoints", help="Delete its checkpoints too, even pinned ones.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete ended jobs and their logs. Keeps checkpoints unless --checkpoints is given."""
    from torchloom.cli.show import output

    client = api()
    if checkpoints:
        client.timeout_s = REMOVE_WITHIN_S
    for job in dict.fromkeys(jobs):
        client.delete(job, force=force, keep_logs=keep_logs, keep_checkpoints=not checkpoints)
        if as_json:
            output.show_line({"job": job, "deleted": True})
        else:
            print(f"{job} deleted")
