"""`loom pause`: let all ranks of a job stand at one step boundary."""

from __future__ import annotations

from torchloom.cli.options import JobArgument, JsonOption, api
from torchloom.cli.steer.changes import TimeoutOption, WaitOption, WhyOption

EXAMPLES = (
    ("loom pause train-3f9a", "hold all ranks before the same step"),
    ("loom pause train-3f9a --why 'look at the data'", "the reason is kept"),
    ("loom resume train-3f9a", "go on"),
)


def command(
    job: JobArgument,
    why: WhyOption = "",
    wait: WaitOption = True,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold all ranks at one step boundary; memory, devices and connections are kept.

    Settings can be changed while it is paused. It stays so when the control service is restarted.
    """
    from torchloom.cli.steer import changes

    client = api()
    accepted = client.pause(job, {"why": why})
    if not wait:
        changes.answer(accepted, f"{job} will be paused: {accepted['operation']}", as_json)
        return
    view = changes.follow(client, job, accepted["operation"], timeout, quiet=as_json)
    changes.conclude(view, f"{job} is paused: all ranks wait before {changes.at(view)}", as_json)
