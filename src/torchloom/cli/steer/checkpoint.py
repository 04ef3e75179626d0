"""`loom checkpoint`: save the state of a running job now, on all ranks after the same step."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from torchloom.cli.options import JobArgument, JsonOption, api
from torchloom.cli.steer.outcome import TimeoutOption, WaitOption, WhyOption

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import CheckpointView, OperationView

EXAMPLES = (
    ("loom checkpoint train-3f9a", "now, and wait until it is durable"),
    ("loom checkpoint train-3f9a --no-wait", "now, and return at once"),
    ("loom checkpoints train-3f9a", "what was saved"),
)

COMMITTED_WITHIN_S = 600.0
"""Writing the state, from the end of the step to the commit."""
LOOK_EVERY_S = 0.2


def command(
    job: JobArgument,
    why: WhyOption = "",
    wait: WaitOption = True,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Save a checkpoint now, besides the regular ones. The script must use loom.Checkpoint."""
    from torchloom.cli.jobs.replicas import steered
    from torchloom.cli.show import output
    from torchloom.cli.steer import outcome
    from torchloom.cli.steer.checkpoints import size

    client = api()
    named, job = job, steered(client, job)
    begun = time.monotonic()
    accepted = client.checkpoint_now(job, {"why": why})
    if not wait:
        outcome.answer(accepted, f"{named} will save: {accepted['operation']}", as_json)
        return
    view = outcome.follow(client, job, accepted["operation"], timeout, quiet=as_json)
    if outcome.failure(view) is not None:
        outcome.conclude(view, "", as_json)
    name = wait_committed(client, view, quiet=as_json, timeout=timeout)
    took = output.seconds(time.monotonic() - begun)
    saved = _entry(client, job, name)
    if as_json:
        output.show_json(saved or {"name": name, "job": job})
    elif saved is None:
        print(f"{name} is committed, {took} after the request")
    else:
        print(f"{name} is committed: {size(saved['size'])}, {took} after the request")
        print(f"  in {saved['where']}")


def wait_committed(client: Client, view: OperationView, quiet: bool, timeout: str | None = None) -> str:
    """The name of the checkpoint, once the store holds all of it. The job keeps training meanwhile."""
    from torchloom.cli.show.screen import Screen
    from torchloom.client import NotAnswering, Unavailable
    from torchloom.durations import parse_span
    from torchloom.errors import JobFailed, TimedOut

    job, step = view["job"], saved_step(view)
    state = "its state" if step is None else f"the state of step {step}"
    within_s = parse_span(timeout, "--timeout") if timeout is not None else COMMITTED_WITHIN_S
    deadline = time.monotonic() + within_s
    screen = Screen(live=not quiet and sys.stderr.isatty())
    try:
        while time.monotonic() < deadline:
            with suppress(NotAnswering, Unavailable):
                view = client.operation(job, view["id"])
            if view["saved"]:
                return view["saved"]
            if view["unsaved"]:
                hint = f"it keeps training; see `loom checkpoints {job}`"
                raise JobFailed(f"{job} could not save {state}: {view['unsaved']}", hint=hint)
            screen.status(f"{job} · all ranks hold {state}; it is being written")
            time.sleep(LOOK_EVERY_S)
    finally:
        screen.close()
    raise TimedOut(
        f"{job} keeps training, but {state} was not in the store within {within_s:g} s",
        hint=f"it is still being written; see `loom checkpoints {job}`",
    )


def _entry(client: Client, job: str, name: str) -> CheckpointView | None:
    """The checkpoint's catalogue entry; None if the store does not answer at the moment."""
    from torchloom.errors import LoomError

    with suppress(LoomError):
        return next((one for one in client.checkpoints(job)["checkpoints"] if one["name"] == name), None)
    return None


def saved_step(view: OperationView) -> int | None:
    """The step whose state was saved: the last one before the boundary; None if unknown."""
    return None if view["training_step"] is None else view["training_step"] - 1
