"""`loom pause`: hold all ranks of a job at the same step boundary."""

from __future__ import annotations

from torchloom.cli.options import JobArgument, JsonOption, api
from torchloom.cli.steer.outcome import TimeoutOption, WaitOption, WhyOption

EXAMPLES = (
    ("loom pause train-3f9a", "hold all ranks before the same step"),
    ("loom pause train-3f9a --why 'look at the data'", "the history keeps the reason"),
    ("loom resume train-3f9a", "continue"),
)


def command(
    job: JobArgument,
    why: WhyOption = "",
    wait: WaitOption = True,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold all ranks at the same step boundary; they keep their memory, devices and connections.

    Settings can be changed while the job is paused. It stays paused if the control service restarts.
    """
    from torchloom.cli.jobs.replicas import steered
    from torchloom.cli.steer import outcome

    client = api()
    named, job = job, steered(client, job)
    accepted = client.pause(job, {"why": why})
    if not wait:
        outcome.answer(accepted, f"{named} will be paused: {accepted['operation']}", as_json)
        return
    view = outcome.follow(client, job, accepted["operation"], timeout, quiet=as_json)
    outcome.conclude(view, f"{named} is paused: all ranks wait before {outcome.at(view)}", as_json)
