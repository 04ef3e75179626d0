"""`loom revert`: take changes of a job's config back, on all ranks at one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torchloom.cli.options import JobArgument, JsonOption, api
from torchloom.cli.steer.changes import TimeoutOption, WaitOption, WhyOption

if TYPE_CHECKING:
    from torchloom.client.schema import RevertRequest

EXAMPLES = (
    ("loom revert train-3f9a", "undo the last change; a second time redoes it"),
    ("loom config train-3f9a --history", "which versions there were"),
    ("loom revert train-3f9a 3", "back to what was in force with version 3"),
    ("loom revert train-3f9a 0 --dry-run", "what it takes to undo all of them"),
)


def command(
    job: JobArgument,
    version: Annotated[
        int | None,
        typer.Argument(metavar="[VERSION]", min=0, help="As listed by `loom config JOB --history`; 0: none."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    why: WhyOption = "",
    wait: WaitOption = True,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring settings back to what they were before the last change, or with an earlier version."""
    from torchloom.cli.steer import changes
    from torchloom.cli.steer.set import only_planned

    body: RevertRequest = {"why": why, "dry_run": dry_run}
    if version is not None:
        body["version"] = version
    client = api()
    plan = client.revert(job, body)
    if only_planned(plan, dry_run or not wait, as_json):
        return
    view = changes.follow(client, job, plan["operation"], timeout, quiet=as_json)
    changes.conclude(
        view, f"{job}: taken back on all ranks at {changes.at(view)}, as version {view['version']}", as_json
    )
