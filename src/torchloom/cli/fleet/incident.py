"""`loom incident`: one incident: its timeline, what every rank was doing, every exit and the last output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import argument, option
from torchloom.cli.options import JsonOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import ExitView, RankEvidenceView, TimelineView

EXAMPLES = (
    ("loom incident train-3f9a.1", "verdict, decision, timeline, stacks, tracebacks"),
    ("loom incident train-3f9a.1 --json", "the same, with all recorded collectives of every rank"),
    ("loom incident train-3f9a.1 --html incident.html", "as a file for somebody without access"),
)
_SHOWN = 8
"""How many collectives of a blamed rank to show: the newest matter most, `--json` has all."""


def command(
    incident: Annotated[str, argument(help="Id of the incident.")],
    as_json: JsonOption = False,
    html: Annotated[
        Path | None,
        option("--html", metavar="FILE", help="Write one self-contained HTML file that opens offline."),
    ] = None,
) -> None:
    """Show an incident: verdict, decision, timeline, what each rank was doing, exits, last output."""
    from torchloom.cli.fleet.probe import show as show_links
    from torchloom.cli.show import output
    from torchloom.report.incident import confidence, incident_page

    found = api().incident(incident)
    if html is not None:
        html.write_text(incident_page(found), encoding="utf-8")
    if as_json:
        output.show_json(found)
        return
    if html is not None:
        print(f"{html}: {found['verdict']}")
        return
    where = f" in {found['job']}, generation {found['generation']}" if found["job"] else ""
    print(f"{found['id']}  {found['kind']}{where}")
    output.fact("verdict", found["verdict"])
    if (fault := found["fault"]) is not None:
        output.fact("cause", f"{fault['kind']} (blame: {fault['blame']}): {fault['sentence']}")
        output.fact("advice", fault["advice"])
    output.fact("decision", f"{found['decision'] or '–'}")
    if found["resolution"]:
        output.fact("ended", found["resolution"])
    if found["finding"] is not None:
        output.fact("confidence", confidence(found["finding"]))
    output.fact("timeline", timeline(found["timeline"]))
    if found["lost_steps"] is not None:
        output.fact("lost", f"{found['lost_steps']} steps of work repeated or lost")
    if found["goodput_before"] is not None and found["goodput_after"] is not None:
        before, after = output.percent(found["goodput_before"]), output.percent(found["goodput_after"])
        output.fact("goodput", f"{before} before, {after} after")
    if (told := found["witness"]) is not None:
        output.fact("witness", told["sentence"])
        print("\n".join(f"           {line}" for line in told["lines"]))
    blamed = found["finding"]["ranks"] if found["finding"] is not None else []
    # Blamed ranks first: the user is looking for them.
    for one in sorted(found["evidence"], key=lambda e: (e["rank"] not in blamed, e["rank"])):
        _show_rank(one, one["rank"] in blamed)
    if found["links"] is not None:
        print()
        show_links(found["links"])
    for report in found["exits"]:
        _show_exit(report, report["rank"] in found["culprits"] and not report["after_stop"])


def _show_rank(one: RankEvidenceView, blamed: bool) -> None:
    """Where a rank was; for blamed ranks, everything that is known."""
    print()
    print(
        f"rank {one['rank']} on {one['node']} at step {one['steps']}, process state {one['state'] or '?'}"
        + ("  [blamed]" if blamed else "")
    )
    if one["doing"]:
        print(f"  it was     {one['doing']}")
    for number, line in enumerate(one["stack"][:12]):
        print(f"  {'stack' if number == 0 else '':<9}  {line}")
    if one["gil"]:
        print(f"  GIL        held by {one['gil']}")
    for number, line in enumerate(one["collectives"][-_SHOWN if blamed else -2 :]):
        print(f"  {'last' if number == 0 else '':<9}  {line}")
    if blamed and one["log_tail"]:
        print("\n".join(f"  │ {line}" for line in one["log_tail"]))


def timeline(line: TimelineView) -> str:
    """`21:14:03 fault → +0.004 s detected → …`, without phases that were not reached."""
    from torchloom.cli.show import output

    start = line["fault_ns"] or line["detected_ns"]
    begin = "first sign" if line["first_sign_ns"] == start else "fault"
    reached = [f"{output.clock(start)} {begin}"]
    reached += [
        f"+{(at - start) / 1e9:.3f} s {name}"
        for at, name in (
            (line["detected_ns"], "detected"),
            (line["decided_ns"], "decided"),
            (line["stopped_ns"], "rest stopped"),
            (line["spawned_ns"], "spawned"),
            (line["restored_ns"], "restored"),
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
