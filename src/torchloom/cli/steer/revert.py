"""`loom revert`: undo changes of a job's settings, on all ranks at the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import argument, option
from torchloom.cli.options import JobArgument, JsonOption, api
from torchloom.cli.steer.outcome import TimeoutOption, WaitOption, WhyOption

if TYPE_CHECKING:
    from torchloom.client.schema import RevertRequest

EXAMPLES = (
    ("loom revert train-3f9a", "undo the last change; run it again to redo"),
    ("loom config train-3f9a --history", "list the versions"),
    ("loom revert train-3f9a 3", "restore the settings of version 3"),
    ("loom revert train-3f9a 0 --dry-run", "show what undoing every change would do"),
)


def command(
    job: JobArgument,
    version: Annotated[
        int | None,
        argument(
            metavar="[VERSION]",
            min=0,
            help="As listed by `loom config JOB --history`; 0 undoes every change.",
        ),
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", help="Only show what would change.")] = False,
    why: WhyOption = "",
    wait: WaitOption = True,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revert settings to what they were before the last change, or to an earlier version."""
    from torchloom.cli.jobs.replicas import steered
    from torchloom.cli.steer import outcome
    from torchloom.cli.steer.set import only_planned

    body: RevertRequest = {"why": why, "dry_run": dry_run}
    if version is not None:
        body["version"] = version
    client = api()
    named, job = job, steered(client, job)
    plan = client.revert(job, body)
    if only_planned(plan, dry_run or not wait, as_json):
        return
    view = outcome.follow(client, job, plan["operation"], timeout, quiet=as_json)
    outcome.conclude(
        view, f"{named}: reverted on all ranks at {outcome.at(view)}, as version {view['version']}", as_json
    )
