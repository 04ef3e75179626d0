"""`loom scale`: go on with more or fewer workers."""

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
    ("loom scale train-3f9a 4 --no-save --no-wait", "from what was saved last, and return at once"),
)

SCALED_WITHIN_S = 300.0


def command(
    job: JobArgument,
    workers: Annotated[int, typer.Argument(metavar="N", help="Workers it shall have.", min=1)],
    save: Annotated[bool, typer.Option("--save/--no-save", help="Save first, if the script can.")] = True,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when all of them run.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Continue with N workers: saves, ends the job at a step boundary, resumes from the newest save.

    Within the --min-workers and --max-workers it was submitted with; refused when there is no room, before
    anything is stopped. Costs nothing of the restart budget.
    """
    from torchloom.cli.show import output
    from torchloom.cli.show.screen import Screen
    from torchloom.errors import JobFailed, TimedOut

    client = api()
    if save:
        client.scale(job, {"workers": workers, "dry_run": True})  # refused before anything is done for it
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
            raise TimedOut(f"{job} has not {workers} workers yet", hint=f"see `loom status {job}`")
    finally:
        screen.close()
    if as_json:
        output.show_json(view)
    else:
        print(f"{job} runs with {workers} workers")


def _save(client: Client, job: str, workers: int, quiet: bool) -> None:
    """What would be trained again is saved before; a script that cannot goes on from what it saved itself.

    A job that is not running has nothing to save, and one that has so many workers already stays as it is. If
    it can save and could not, nothing is stopped: its store may hang, and then it could not restore either.
    """
    from torchloom.cli.steer import changes
    from torchloom.cli.steer.checkpoint import wait_committed
    from torchloom.errors import Conflict, JobFailed

    before = client.summary(job)
    if before["state"] != "running" or before["world_size"] == workers:
        return
    try:
        asked = client.checkpoint_now(job, {"why": f"before it continues with {workers} workers"})
        view = changes.follow(client, job, asked["operation"], None, quiet)
        why_not = changes.failure(view)
        if why_not is not None and any(text.startswith("Traceback") for text in view["trouble"].values()):
            hint = "it trains on as it was; --no-save scales it from what it saved last"
            raise JobFailed(f"{job} was not scaled: {why_not.message}", hint=hint)
    except Conflict as refused:
        why_not = refused
    if why_not is None:
        wait_committed(client, view, quiet)
    elif not quiet:
        print(f"loom: not saved before: {why_not.message}", file=sys.stderr)
