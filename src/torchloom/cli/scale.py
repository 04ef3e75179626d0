"""`loom scale`: go on with more or fewer workers."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from torchloom.cli.options import JobArgument, JsonOption, api

EXAMPLES = (
    ("loom checkpoint train-3f9a && loom scale train-3f9a 8", "without losing a step"),
    ("loom scale train-3f9a 4 --no-wait", "return at once"),
)

SCALED_WITHIN_S = 300.0


def command(
    job: JobArgument,
    workers: Annotated[int, typer.Argument(metavar="N", help="Workers it shall have.", min=1)],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when all of them run.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Go on with N workers: ends the job at a step boundary, begins again from its newest checkpoint.

    Within the --min-workers and --max-workers it was submitted with; refused when there is no room, before
    anything is stopped. Costs nothing of the restart budget.
    """
    from torchloom.cli import output
    from torchloom.cli.screen import Screen
    from torchloom.errors import JobFailed, TimedOut

    client = api()
    accepted = client.scale(job, {"workers": workers})
    if not wait:
        if as_json:
            output.show_json(accepted)
        else:
            print(f"{job} will have {workers} workers")
        return
    deadline, after = time.monotonic() + SCALED_WITHIN_S, -1
    screen = Screen(live=not as_json and sys.stderr.isatty())
    try:
        while time.monotonic() < deadline:
            view = client.job(job, after=after, wait_s=1.0)
            after = view["seq"]
            if view["state"] == "running" and view["running_workers"] == view["world_size"] == workers:
                break
            if view["ended"]:
                raise JobFailed(f"{job} ended before it had {workers} workers: {view['reason']}")
            screen.status(f"{job} {view['state']} · {view['reason']}")
        else:
            raise TimedOut(f"{job} has not {workers} workers yet", hint=f"see `loom status {job}`")
    finally:
        screen.close()
    if as_json:
        output.show_json(view)
    else:
        print(f"{job} runs with {workers} workers")
