"""`loom replay`: an incident event by event, as the core decided it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import argument
from torchloom.cli.options import JsonOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import DecisionView, ReplayStepView

EXAMPLES = (
    ("loom replay train-3f9a.1", "each event, what it changed, what was decided and why"),
    ("loom replay train-3f9a.1 --json", "the same for a program"),
)
_SHORT = 90
"""Of longer texts only the new one is shown."""


def command(
    incident: Annotated[str, argument(help="Id of the incident.")],
    as_json: JsonOption = False,
) -> None:
    """Replay an incident: apply its recorded events to the core again and explain every decision."""
    from torchloom.cli.show import output

    found = api().replay(incident)
    if as_json:
        output.show_json(found)
        return
    print(f"{found['incident']}  {found['sentence']}")
    first_ns = found["steps"][0]["at_ns"] if found["steps"] else 0
    for step in found["steps"]:
        print()
        _show(step, first_ns)


def _show(step: ReplayStepView, first_ns: int) -> None:
    print(f"{step['seq']:>7}  +{(step['at_ns'] - first_ns) / 1e9:.3f} s  {step['kind']}: {step['text']}")
    for change in step["changes"]:
        before, after = change["before"] or "–", change["after"] or "–"
        short = len(before) + len(after) < _SHORT
        print(f"         {change['what']}: {f'{before} → ' if short else ''}{after}")
    for one in step["decisions"]:
        print(f"         decided: {_words(one)}")


def _words(one: DecisionView) -> str:
    whom = f" {one['who']}" if one["who"] else ""
    sure = "; the record differs" if one["recorded"] == "differs" else ""
    return f"{one['do']}{whom} on {one['node']}, because {one['reason']}{sure}"
