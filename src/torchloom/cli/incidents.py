"""`loom incidents`: what went wrong, of all jobs or of one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torchloom.cli.options import HomeOption, JsonOption, api


def command(
    job: Annotated[str | None, typer.Argument(help="Only of this job.")] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List incidents with verdict, decision and time to recover."""
    from torchloom.cli import output

    found = api(home).get("/incidents", job=job)
    if as_json:
        output.show_json(found)
    else:
        show(found)


def show(found: list[dict[str, Any]]) -> None:
    from torchloom.cli import output

    output.table(
        ("INCIDENT", "WHEN", "JOB", "RANK", "RECOVERED", "WHAT"),
        (
            (
                incident["id"],
                output.clock(incident["timeline"]["fault_ns"] or incident["timeline"]["detected_ns"]),
                incident["job"],
                "–" if incident["culprit"] is None else f"{incident['culprit']}",
                recovered(incident),
                sentence(incident),
            )
            for incident in found
        ),
        nothing="no incidents",
    )


def sentence(incident: dict[str, Any]) -> str:
    """What happened and what follows."""
    return "; ".join(text.rstrip(".") for text in (incident["verdict"], incident["decision"]) if text)


def recovered(incident: dict[str, Any]) -> str:
    from torchloom.cli import output

    if incident["recovery_s"] is not None:
        return output.seconds(incident["recovery_s"])
    return "not yet" if incident["open"] else "no"
