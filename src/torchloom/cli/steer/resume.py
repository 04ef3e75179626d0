"""`loom resume`: continue a paused job."""

from __future__ import annotations

from torchloom.cli.options import JobArgument, JsonOption, api
from torchloom.cli.steer.outcome import TimeoutOption, WaitOption, WhyOption

EXAMPLES = (("loom resume train-3f9a", "all ranks continue with the next step"),)


def command(
    job: JobArgument,
    why: WhyOption = "",
    wait: WaitOption = True,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a paused job; the result is the same as if it had never been paused."""
    from torchloom.cli.jobs.replicas import steered
    from torchloom.cli.steer import outcome

    client = api()
    named, job = job, steered(client, job)
    accepted = client.resume(job, {"why": why})
    if not wait:
        outcome.answer(accepted, f"{named} will continue: {accepted['operation']}", as_json)
        return
    view = outcome.follow(client, job, accepted["operation"], timeout, quiet=as_json)
    outcome.conclude(view, f"{named} continues with {outcome.at(view)}", as_json)
