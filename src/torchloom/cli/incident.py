"""`loom incident`: one incident with its timeline, every exit, and the last lines of the logs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torchloom.cli.options import HomeOption, JsonOption, api

_PHASES = (
    ("detected_ns", "detected"),
    ("decided_ns", "decided"),
    ("stopped_ns", "rest stopped"),
    ("spawned_ns", "spawned"),
    ("first_step_ns", "first step"),
)


def command(
    incident: Annotated[str, typer.Argument(help="Id of the incident.")],
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show an incident: verdict, decision, timeline, exits, last words."""
    from torchloom.cli import output

    found = api(home).get(f"/incidents/{incident}")
    if as_json:
        output.show_json(found)
        return
    print(f"{found['id']}  {found['kind']} in {found['job']}, generation {found['generation']}")
    print(f"verdict    {found['verdict']}")
    print(f"decision   {found['decision'] or '–'}")
    print(f"timeline   {timeline(found['timeline'])}")
    if found["lost_steps"] is not None:
        print(f"lost       {found['lost_steps']} training steps are repeated")
    for report in found["exits"]:
        _show_exit(report, report["rank"] == found["culprit"])


def timeline(line: dict[str, int]) -> str:
    """`21:14:03 fault → +0.004 s detected → …`; phases that were not reached are left out."""
    from torchloom.cli import output

    start = line["fault_ns"] or line["detected_ns"]
    reached = [f"{output.clock(start)} fault"]
    reached += [f"+{(line[key] - start) / 1e9:.3f} s {name}" for key, name in _PHASES if line[key]]
    return " → ".join(reached)


def _show_exit(report: dict[str, Any], culprit: bool) -> None:
    role = "culprit" if culprit else "ended by us" if report["after_stop"] else ""
    role = "secondary" if report["secondary"] and not culprit else role
    print()
    print(
        f"rank {report['rank']} on {report['node']} {report['how']} after {report['steps']} steps"
        + (f"  [{role}]" if role else "")
    )
    if report["activity"]:
        print(f"  last seen  {report['activity']}")
    if report["traceback"]:
        print("\n".join(f"  │ {line}" for line in report["traceback"].rstrip().splitlines()))
    elif report["log_tail"] and culprit:
        print("\n".join(f"  │ {line}" for line in report["log_tail"][-10:]))
