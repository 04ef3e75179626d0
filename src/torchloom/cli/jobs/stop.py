"""`loom stop`: stop a job at a step boundary, or at once, and wait until it has ended."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from torchloom.cli.options import JobsArgument, JsonOption, api

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import JobDetail

EXAMPLES = (
    ("loom stop train-3f9a", "stop at the next step boundary, and wait"),
    ("loom stop train-3f9a --grace 5", "SIGKILL workers that still run 5 s after SIGTERM"),
    ("loom stop train-3f9a --kill", "at once"),
)

STOP_WITHIN_S = 300.0


def command(
    jobs: JobsArgument,
    kill: Annotated[
        bool, typer.Option("--kill", help="SIGKILL at once, without waiting for a step boundary.")
    ] = False,
    grace: Annotated[
        float | None, typer.Option("--grace", help="Seconds between SIGTERM and SIGKILL.", metavar="S")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return once the job has ended.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Stop jobs at their next step boundary and wait until they have ended."""
    from torchloom.cli.show import output

    client = api()
    had_ended = {job: client.job(job)["ended"] for job in dict.fromkeys(jobs)}
    for job, ended in had_ended.items():
        if not ended:
            client.stop(job, {"kill": kill, "grace_s": grace})
    for job, ended in had_ended.items():
        view = wait_ended(client, job, quiet=as_json) if wait else client.job(job)
        if as_json:
            output.show_line(view)
        elif ended:
            print(f"{job} had already ended: {view['state']}")
        else:
            print(f"{job} {view['state']}: {view['reason']}")


def wait_ended(client: Client, job: str, quiet: bool) -> JobDetail:
    """The job once it has ended. Shows progress on a terminal."""
    from torchloom.cli.show.screen import Screen
    from torchloom.errors import TimedOut

    deadline = time.monotonic() + STOP_WITHIN_S
    screen = Screen(live=not quiet and sys.stderr.isatty())
    after = -1
    try:
        while time.monotonic() < deadline:
            view = client.job(job, after=after, wait_s=1.0)
            if view["ended"]:
                return view
            after = view["seq"]
            screen.status(
                f"{job} {view['state']} · {view['running_workers']} workers left · {view['reason']}"
            )
    finally:
        screen.close()
    raise TimedOut(f"{job} has not ended within {STOP_WITHIN_S:g} s", hint=f"use `loom stop --kill {job}`")
