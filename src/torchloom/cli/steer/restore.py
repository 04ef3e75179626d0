"""`loom restore`: continue a job from an earlier step."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from torchloom.cli.declared import EndVerb, option
from torchloom.cli.options import JobArgument, JsonOption, api

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import RestoreAccepted, RestoreRequest

EXAMPLES = (
    ("loom checkpoints train-3f9a", "list the steps to choose from"),
    ("loom restore train-3f9a --step 200", "continue after step 200"),
    ("loom restore train-3f9a --step 200 --config revert", "with the settings as they were then"),
    ("loom restore train-3f9a --step 200 --config keep", "with the current settings"),
)

RESTORED_WITHIN_S = 300.0
ANSWER_WITHIN_S = 60.0
"""The service checks the saved state before it answers."""


def command(
    job: JobArgument,
    step: Annotated[int, option("--step", metavar="N", help="Step of the checkpoint.", min=0)],
    config: Annotated[
        str | None,
        option(
            "--config",
            metavar="keep|revert",
            help="Settings changed after that step: keep their values, or revert them to that step.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        bool, option("--wait/--no-wait", help="Return once the job trains from that step.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Continue from an earlier step: without a restart if the script uses loom.Checkpoint, else with one.

    A job that has ended starts again. If that step is missing or damaged, the request is refused before
    anything is stopped. Does not count against the restart budget.
    """
    from torchloom.cli.show import output
    from torchloom.cli.show.states import ConfigChoice, check
    from torchloom.cli.steer import outcome

    body: RestoreRequest = {"step": step}
    if config is not None:
        body["config"] = check([config], ConfigChoice, "--config")[0]
    client = api()
    client.timeout_s = ANSWER_WITHIN_S
    before = client.job(job)["generation"]
    accepted = client.restore(job, body)
    chosen = accepted["checkpoint"]
    asked = told(accepted, before)
    if not wait:
        outcome.answer(asked, f"{job} will resume from {chosen}", as_json)
        return
    if accepted["operation"]:
        view = outcome.follow(client, job, accepted["operation"], f"{RESTORED_WITHIN_S:g}s", quiet=as_json)
        if view["state"] == "applied" or client.job(job)["restoring"] is None:
            if as_json:
                output.show_json({**asked, "state": view["state"], "reason": view["reason"]})
                if (error := outcome.failure(view)) is not None:
                    raise EndVerb(error.exit_code)
                return
            outcome.conclude(view, f"{job} went back to {chosen} on all ranks, without a restart", as_json)
            return
        if not as_json:
            print(
                f"loom: cannot restore without a restart ({view['reason'].rstrip('.')}); restarting.",
                file=sys.stderr,
            )
    generation = wait_restored(client, job, before, chosen, quiet=as_json)
    done = {**asked, "how": "restart", "state": "applied", "generation": generation}
    text = f"{job} resumes after step {step}, from {chosen}"
    outcome.answer({**done, "reason": f"generation {generation} began from it"}, text, as_json)


def told(accepted: RestoreAccepted, generation: int) -> dict[str, Any]:
    """The output of `--json` for every outcome: `how` is live (on all ranks, without a restart) or restart;
    `state` is asked, applied, or the operation's other final state."""
    how = "live" if accepted["operation"] else "restart"
    return {**accepted, "how": how, "state": "asked", "generation": generation, "reason": ""}


def wait_restored(client: Client, job: str, before: int, chosen: str, quiet: bool) -> int:
    """The generation that resumed from the state. Shows progress while it waits."""
    from torchloom.cli.show.screen import Screen
    from torchloom.errors import JobFailed, TimedOut

    deadline = time.monotonic() + RESTORED_WITHIN_S
    screen = Screen(live=not quiet and sys.stderr.isatty())
    after = -1
    try:
        while time.monotonic() < deadline:
            view = client.job(job, after=after, wait_s=1.0)
            after = view["seq"]
            if view["generation"] > before:
                found = client.checkpoints(job)
                if found["restored"] == chosen and found["restored_generation"] > before:
                    return found["restored_generation"]
                if view["ended"]:
                    raise JobFailed(f"{job} ended before it had restored {chosen}: {view['reason']}")
            screen.status(f"{job} {view['state']} · {view['reason']}")
    finally:
        screen.close()
    raise TimedOut(
        f"{job} has not started from {chosen} within {RESTORED_WITHIN_S:g} s", hint=f"see `loom status {job}`"
    )
