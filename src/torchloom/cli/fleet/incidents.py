"""`loom incidents`: the incidents of all jobs or of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchloom.cli.options import AnyJobArgument, JsonOption, WatchOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import IncidentChangeView, IncidentView

_SHOWN = 4
"""Ranks of an incident."""

EXAMPLES = (
    ("loom incidents", "of all jobs"),
    ("loom incidents train-3f9a --json", "of one job, for a program"),
)


def command(
    job: AnyJobArgument = None,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """List incidents: verdict, decision, and time to recover."""
    from torchloom.cli.show import output

    client = api()
    if watch:
        from torchloom.cli.show import watching

        watching.watch(lambda: client.incidents(job=job), show, lines=list if as_json else None)
    elif as_json:
        output.show_json(client.incidents(job=job))
    else:
        show(client.incidents(job=job))


def show(found: list[IncidentView]) -> None:
    from torchloom.cli.show import output

    output.table(
        ("INCIDENT", "WHEN", "JOB", "RANK", "RECOVERED", "WHAT"),
        (
            (
                incident["id"],
                output.clock(incident["timeline"]["fault_ns"] or incident["timeline"]["detected_ns"]),
                incident["job"] or "–",
                _ranks(incident),
                recovered(incident),
                sentence(incident),
            )
            for incident in found
        ),
        nothing="no incidents",
        spare=("JOB",),
    )


def _ranks(incident: IncidentView) -> str:
    shown = [str(rank) for rank in incident["culprits"][:_SHOWN]]
    more = [f"+{len(incident['culprits']) - _SHOWN}"] if len(incident["culprits"]) > _SHOWN else []
    return " ".join(shown + more) or "–"


def sentence(incident: IncidentView) -> str:
    """The verdict and the decision, in one sentence."""
    said = (incident["verdict"], incident["resolution"] or incident["decision"])
    return "; ".join(text.rstrip(".") for text in said if text)


def is_news(incident: IncidentView | IncidentChangeView) -> bool:
    """Whether to show a new decision about an incident that was shown before: only if it leads to an action.

    An incident that is only reported appears once; `loom incidents` shows that it is still open.
    """
    return incident["outcome"] in ("pending", "done")


def recovered(incident: IncidentView) -> str:
    from torchloom.cli.show import output

    if incident["recovery_s"] is not None:
        return output.seconds(incident["recovery_s"])
    if incident["open"]:
        return "not yet"
    return {"rollback": "rolled back", "itself": "by itself"}.get(incident["ended_by"], "no")
