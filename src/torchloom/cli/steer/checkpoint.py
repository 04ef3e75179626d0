"""`loom checkpoint`: save the state of a running job now, on all ranks after the same step."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from torchloom.cli.options import JobArgument, JsonOption, api
from torchloom.cli.steer.changes import TimeoutOption, WaitOption, WhyOption

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import CheckpointView, OperationView

EXAMPLES = (
    ("loom checkpoint train-3f9a", "now, and wait until it is durable"),
    ("loom checkpoint train-3f9a --no-wait", "now, and return at once"),
    ("loom checkpoints train-3f9a", "what was saved"),
)

COMMITTED_WITHIN_S = 600.0
"""Between the step and the commit lies the writing of the state."""
LOOK_EVERY_S = 0.2


def command(
    job: JobArgument,
    why: WhyOption = "",
    wait: WaitOption = True,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Save a checkpoint now, whatever the rhythm; needs loom.Checkpoint in the script."""
    from torchloom.cli.show import output
    from torchloom.cli.steer import changes
    from torchloom.cli.steer.checkpoints import size

    client = api()
    begun = time.monotonic()
    accepted = client.checkpoint_now(job, {"why": why})
    if not wait:
        changes.answer(accepted, f"{job} will save: {accepted['operation']}", as_json)
        return
    view = changes.follow(client, job, accepted["operation"], timeout, quiet=as_json)
    if changes.failure(view) is not None:
        changes.conclude(view, "", as_json)
    saved = wait_committed(client, view, quiet=as_json)
    if as_json:
        output.show_json(saved)
    else:
        took = output.seconds(time.monotonic() - begun)
        print(f"{saved['name']} is committed: {size(saved['size'])}, {took} after it was asked for")
        print(f"  in {saved['where']}")


def wait_committed(client: Client, view: OperationView, quiet: bool) -> CheckpointView:
    """The entry of the catalogue, once the state of that step is whole in its store."""
    from torchloom.cli.show.screen import Screen
    from torchloom.errors import JobFailed, TimedOut

    job, step = view["job"], saved_step(view)
    deadline = time.monotonic() + COMMITTED_WITHIN_S
    screen = Screen(live=not quiet and sys.stderr.isatty())
    try:
        while time.monotonic() < deadline:
            found = client.checkpoints(job)
            for one in found["checkpoints"]:
                if one["generation"] == view["generation"] and one["whole"] and step in (None, one["step"]):
                    return one
            if found["failing"]:
                raise JobFailed(f"{job} cannot save", hint=f"see `loom incident {found['failing']}`")
            if client.summary(job)["ended"]:
                raise JobFailed(f"{job} ended before the state of step {step} was committed.")
            screen.status(f"{job} · all ranks hold the state of step {step}; it is being written")
            time.sleep(LOOK_EVERY_S)
    finally:
        screen.close()
    raise TimedOut(
        f"The state of step {step} was not committed within {COMMITTED_WITHIN_S:g} s",
        hint=f"see `loom checkpoints {job}`",
    )


def saved_step(view: OperationView) -> int | None:
    """The step whose state was taken: the last one before the boundary; None when it is not known."""
    return None if view["training_step"] is None else view["training_step"] - 1
