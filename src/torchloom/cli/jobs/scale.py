"""`loom scale`: continue with more or fewer workers."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from torchloom.cli.options import JobArgument, JsonOption, api

if TYPE_CHECKING:
    from torchloom.client import Client

EXAMPLES = (
    ("loom scale train-3f9a 8", "save, then continue with 8 workers"),
    ("loom scale train-3f9a 4 --no-save --no-wait", "from the last save, and return at once"),
)

SCALED_WITHIN_S = 300.0


def command(
    job: JobArgument,
    workers: Annotated[int, typer.Argument(metavar="N", help="New number of workers.", min=1)],
    save: Annotated[
        bool, typer.Option("--save/--no-save", help="Save first, if the script supports it.")
    ] = True,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return once all workers run.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Change the number of workers: save, stop at a step boundary, resume with N workers.

    N must lie within the job's --min-workers and --max-workers. If there is no room, the request is refused
    before anything is stopped. Does not count against the restart budget.
    """
    from torchloom.cli.show import output
    from torchloom.cli.show.screen import Screen
    from torchloom.errors import JobFailed, TimedOut

    client = api()
    if save:
        client.scale(job, {"workers": workers, "dry_run": True})  # refused before anything happens
        _save(client, job, workers, quiet=as_json)
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
            raise TimedOut(f"{job} does not have {workers} workers yet", hint=f"see `loom status {job}`")
    finally:
        screen.close()
    if as_json:
        output.show_json(view)
    else:
        print(f"{job} runs with {workers} workers")


def _save(client: Client, job: str, workers: int, quiet: bool) -> None:
    """Save first, so that no steps are repeated; a script without loom.Checkpoint resumes from its own save.

    A job that is not running has nothing to save, and one that already has this many workers stays as it is.
    If a save fails, nothing is stopped: the store may hang, and then the job could not restore either.
    """
    from torchloom.cli.steer import outcome
    from torchloom.cli.steer.checkpoint import wait_committed
    from torchloom.errors import Conflict, JobFailed

    before = client.summary(job)
    if before["state"] != "running" or before["world_size"] == workers:
        return
    try:
        asked = client.checkpoint_now(job, {"why": f"before it continues with {workers} workers"})
        view = outcome.follow(client, job, asked["operation"], None, quiet)
        why_not = outcome.failure(view)
        if why_not is not None and view["raised"]:
            hint = "it keeps training with the same workers; --no-save scales it from its last save"
            raise JobFailed(f"{job} was not scaled: {why_not.message}", hint=hint)
    except Conflict as refused:
        why_not = refused
    if why_not is None:
        wait_committed(client, view, quiet)
    elif not quiet:
        print(f"loom: no save before scaling: {why_not.message}", file=sys.stderr)
