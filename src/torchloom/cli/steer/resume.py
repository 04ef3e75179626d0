"""`loom resume`: let a paused job go on."""

from __future__ import annotations

from torchloom.cli.options import JobArgument, JsonOption, api
from torchloom.cli.steer.changes import TimeoutOption, WaitOption, WhyOption

EXAMPLES = (("loom resume train-3f9a", "all ranks go on with the step they stood before"),)


def command(
    job: JobArgument,
    why: WhyOption = "",
    wait: WaitOption = True,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a paused job go on; the result is the same as if it had never been paused."""
    from torchloom.cli.steer import changes

    client = api()
    accepted = client.resume(job, {"why": why})
    if not wait:
        changes.answer(accepted, f"{job} will go on: {accepted['operation']}", as_json)
        return
    view = changes.follow(client, job, accepted["operation"], timeout, quiet=as_json)
    changes.conclude(view, f"{job} goes on with {changes.at(view)}", as_json)
