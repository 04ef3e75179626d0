"""`loom restart`: begin a job again from its newest checkpoint."""

from __future__ import annotations

import sys
import time
from typing import Annotated

from torchloom.cli.declared import option
from torchloom.cli.options import JobArgument, JsonOption, api

EXAMPLES = (
    ("loom restart train-3f9a", "a job that failed or was stopped continues"),
    ("loom restart train-3f9a --max-steps 5000", "train on after it ended by its last step"),
)

RESTARTED_WITHIN_S = 300.0


def command(
    job: JobArgument,
    max_steps: Annotated[
        int | None, option("--max-steps", metavar="N", min=1, help="New last training step.")
    ] = None,
    wait: Annotated[bool, option("--wait/--no-wait", help="Return once all workers run.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Begin a job again from its newest checkpoint, with the program and settings it has.

    A job that runs is stopped at a step boundary first. Does not count against the restart budget. The script
    must restore its state itself, for example with loom.Checkpoint.
    """
    from torchloom.cli.show import output
    from torchloom.cli.show.screen import Screen
    from torchloom.errors import JobFailed, TimedOut

    client = api()
    accepted = client.restart(job, {"max_steps": max_steps})
    deadline, after = time.monotonic() + RESTARTED_WITHIN_S, -1
    screen = Screen(live=not as_json and sys.stderr.isatty())
    view = None
    try:
        while wait:
            if time.monotonic() > deadline:
                raise TimedOut(f"{job} does not run yet", hint=f"see `loom status {job}`")
            view = client.job(job, after=after, wait_s=1.0)
            after = view["seq"]
            if view["generation"] > accepted["generation"]:
                if view["state"] in ("running", "completed"):
                    break
                if view["ended"]:
                    raise JobFailed(f"{job} ended again: {view['reason']}")
            screen.status(f"{job} {view['state']} · {view['reason']}")
    finally:
        screen.close()
    if as_json:
        output.show_json(view or accepted)
    else:
        print(f"{job} {'runs again' if wait else 'will be restarted'}")
