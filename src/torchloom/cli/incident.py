"""`loom incident`: one incident with its timeline, every exit, and the last lines of the logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torchloom.cli.options import JsonOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import ExitView, TimelineView

EXAMPLES = (("loom incident train-3f9a.i1", "verdict, decision, timeline, tracebacks"),)


def command(
    incident: Annotated[str, typer.Argument(help="Id of the incident.")],
    as_json: JsonOption = False,
) -> None:
    """Show an incident: verdict, decision, timeline, exits, last words."""
    from torchloom.cli import output

    found = api().incident(incident)
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


def timeline(line: TimelineView) -> str:
    """`21:14:03 fault → +0.004 s detected → …`; phases that were not reached are left out."""
    from torchloom.cli import output

    start = line["fault_ns"] or line["detected_ns"]
    reached = [f"{output.clock(start)} fault"]
    reached += [
        f"+{(at - start) / 1e9:.3f} s {name}"
        for at, name in (
            (line["detected_ns"], "detected"),
            (line["decided_ns"], "decided"),
            (line["stopped_ns"], "rest stopped"),
            (line["spawned_ns"], "spawned"),
            (line["first_step_ns"], "first step"),
        )
        if at
    ]
    return " → ".join(reached)


def _show_exit(report: ExitView, culprit: bool) -> None:
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
