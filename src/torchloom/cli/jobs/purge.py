"""`loom purge`: delete ended jobs by age, state and label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import option
from torchloom.cli.jobs.delete import REMOVE_WITHIN_S
from torchloom.cli.options import JsonOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import PurgeRequest

EXAMPLES = (
    ("loom purge --dry-run", "list jobs that ended more than a week ago"),
    ("loom purge --older-than 1d --state failed", "failed jobs, a day after they ended"),
    ("loom purge --older-than 0 -l team=vision --keep-logs", "all ended jobs of a team"),
)


def command(
    older_than: Annotated[
        str, option("--older-than", metavar="SPAN", help="Minimum time since the job ended: 2h, 7d.")
    ] = "7d",
    state: Annotated[
        list[str] | None,
        option("--state", metavar="STATE", help="Only completed, failed or stopped jobs; repeatable."),
    ] = None,
    label: Annotated[
        list[str] | None,
        option("--label", "-l", metavar="KEY=VALUE", help="Only jobs with this label; repeatable."),
    ] = None,
    keep_logs: Annotated[bool, option("--keep-logs", help="Keep their log files on the nodes.")] = False,
    checkpoints: Annotated[
        bool, option("--checkpoints", help="Delete their checkpoints too, even pinned ones.")
    ] = False,
    dry_run: Annotated[bool, option("--dry-run", help="List the jobs, delete nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete ended jobs by age, state and label. Keeps checkpoints unless --checkpoints is given."""
    from torchloom.cli.show import output
    from torchloom.cli.show.states import EndState, check, pairs
    from torchloom.durations import parse_span

    body: PurgeRequest = {
        "older_than_s": parse_span(older_than, "--older-than"),
        "labels": pairs(label or (), "--label"),
        "keep_logs": keep_logs,
        "keep_checkpoints": not checkpoints,
        "dry_run": dry_run,
    }
    if state:
        body["states"] = check(state, EndState, "--state")
    client = api()
    if checkpoints:
        client.timeout_s = REMOVE_WITHIN_S
    found = client.purge(body)
    if as_json:
        output.show_json(found)
        return
    for job in found["jobs"]:
        print(f"{job} would be deleted" if dry_run else f"{job} deleted")
    for job, why in found["kept"].items():
        print(f"{job} kept: {why}")
    if not found["jobs"] and not found["kept"]:
        print("no matching jobs")
