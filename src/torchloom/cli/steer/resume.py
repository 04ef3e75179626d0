"""`loom resume`: continue a paused job."""

from __future__ import annotations

from torchloom.cli.options import JobArgument, JsonOption, api
from torchloom.cli.steer.changes import TimeoutOption, WaitOption, WhyOption

EXAMPLES = (("loom resume train-3f9a", "all ranks continue with the next step"),)


def command(
    job: JobArgument,
    why: WhyOption = "",
    wait: WaitOption = True,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a paused job; the result is the same as if it had never been paused."""
    from torchloom.cli.steer import changes

    client = api()
    accepted = client.resume(job, {"why": why})
    if not wait:
        changes.answer(accepted, f"{job} will continue: {accepted['operation']}", as_json)
        return
    view = changes.follow(client, job, accepted["operation"], timeout, quiet=as_json)
    changes.conclude(view, f"{job} continues with {changes.at(view)}", as_json)
