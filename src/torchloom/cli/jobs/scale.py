"""`loom scale`: continue with more or fewer workers."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import argument, option
from torchloom.cli.options import JobArgument, JsonOption, api

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import JobSummary, OperationView

EXAMPLES = (
    ("loom scale train-3f9a 8", "save, then continue with 8 workers"),
    ("loom scale train-3f9a 4 --no-save --no-wait", "from the last save, and return at once"),
)

SCALED_WITHIN_S = 300.0
SAVED_WITHIN_S = 60.0
"""No new try of a save is begun after this time."""
AGAIN_AFTER_S = 2.0
OWN_SAVE = "It resumes from what the script itself has saved."


def command(
    job: JobArgument,
    workers: Annotated[int, argument(metavar="N", help="New number of workers.", min=1)],
    save: Annotated[bool, option("--save/--no-save", help="Save first, if the script supports it.")] = True,
    wait: Annotated[bool, option("--wait/--no-wait", help="Return once all workers run.")] = True,
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
    If a save fails, nothing is stopped: the store may hang, and then the job could not restore either. Ranks
    that were only too busy to agree on a step are asked again for a while.
    """
    from torchloom.cli.steer.checkpoint import wait_committed
    from torchloom.errors import JobFailed

    give_up = time.monotonic() + SAVED_WITHIN_S
    while True:
        before = client.summary(job)
        if before["state"] != "running" or before["world_size"] == workers:
            return
        view, why_not = _ask_to_save(client, job, workers, quiet)
        if view is not None and not why_not:
            wait_committed(client, view, quiet)
            return
        if view is None and before["checkpoint_step"] is None:
            if not quiet:
                print(f"loom: no save before scaling: {why_not.rstrip('.')}. {OWN_SAVE}", file=sys.stderr)
            return
        raised = view is not None and bool(view["raised"])
        if raised or time.monotonic() + AGAIN_AFTER_S > give_up:
            hint = f"{at_stake(client.summary(job))}; --no-save scales it all the same"
            raise JobFailed(f"{job} was not scaled, because it could not be saved: {why_not}", hint=hint)
        if not quiet:
            print(f"loom: not saved yet, trying again: {why_not}", file=sys.stderr)
        time.sleep(AGAIN_AFTER_S)


def _ask_to_save(client: Client, job: str, workers: int, quiet: bool) -> tuple[OperationView | None, str]:
    """The save that all ranks have agreed on, or why there is none; no operation if it was refused."""
    from torchloom.cli.steer import outcome
    from torchloom.errors import Conflict

    try:
        asked = client.checkpoint_now(job, {"why": f"before it continues with {workers} workers"})
        view = outcome.follow(client, job, asked["operation"], None, quiet)
    except Conflict as refused:
        return None, refused.message
    failed = outcome.failure(view)
    return view, "" if failed is None else failed.message


def at_stake(job: JobSummary) -> str:
    """What would be lost if it were scaled without a save."""
    if job["checkpoint_step"] is None:
        return (
            f"it keeps training at step {job['step']} and has no checkpoint yet, so all steps would be lost"
        )
    saved = job["checkpoint_step"]
    lost = max(0, job["step"] - saved)
    steps = f"{lost} step{'' if lost == 1 else 's'}"
    newest = f"its newest checkpoint is of step {saved}, so {steps} would be lost"
    return f"it keeps training at step {job['step']}; {newest}"
