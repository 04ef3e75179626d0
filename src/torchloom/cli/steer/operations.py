"""`loom operations`: the operations requested on a running job, and their outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import argument, option
from torchloom.cli.options import JobArgument, JsonOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import OperationView

EXAMPLES = (
    ("loom operations train-3f9a", "all operations, newest last"),
    ("loom operations train-3f9a 41d0c2a9e7f3", "one operation, with the ranks' tracebacks"),
    ("loom operations train-3f9a --cancel 41d0c2a9e7f3", "cancel one in progress"),
)


def command(
    job: JobArgument,
    operation: Annotated[
        str | None, argument(metavar="[ID]", help="Id of one operation, as listed.", show_default=False)
    ] = None,
    active: Annotated[bool, option("--active", help="Only operations in progress.")] = False,
    cancel: Annotated[
        str | None, option("--cancel", metavar="ID", help="Cancel this operation.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List operations on a job (set, pause, checkpoint, restore …), or cancel one."""
    from torchloom.cli.jobs.replicas import steered
    from torchloom.cli.show import output
    from torchloom.cli.steer import outcome
    from torchloom.errors import UsageError

    client = api()
    job = steered(client, job)
    if cancel is not None:
        if operation is not None:
            raise UsageError("--cancel takes the id itself", hint=f"write --cancel {cancel}")
        client.cancel_operation(job, cancel)
        view = outcome.follow(client, job, cancel, None, quiet=as_json)
        outcome.answer(view, f"{cancel} {view['state']}: {view['reason']}", as_json)
    elif operation is not None:
        found = client.operation(job, operation)
        if as_json:
            output.show_json(found)
        else:
            _show(found)
    else:
        listed = client.operations(job, active=active)
        if as_json:
            output.show_json(listed)
        else:
            _table(listed)


def _table(listed: list[OperationView]) -> None:
    from torchloom.cli.show import output
    from torchloom.cli.steer import outcome

    output.table(
        ("ID", "NUMBER", "VERSION", "KIND", "STATE", "STEP", "ASKED", "BY", "WHAT"),
        (
            (
                one["id"],
                f"{one['number'] or '–'}",
                f"{one['version'] or '–'}",
                one["kind"],
                one["state"],
                outcome.step_of(one) or "–",
                output.clock(one["asked_at_ns"]),
                one["by"],
                " · ".join(part for part in (outcome.assignments(one["values"]), _reason(one)) if part),
            )
            for one in listed
        ),
        nothing="no operations yet; `loom set` changes a setting",
        spare=("BY", "VERSION", "NUMBER"),
    )


def _reason(view: OperationView) -> str:
    """Why the operation is in its state. Other columns say whether and at which step it was applied."""
    return "" if view["state"] == "applied" and not view["unheard"] else view["reason"]


def _show(view: OperationView) -> None:
    from torchloom.cli.show import output
    from torchloom.cli.steer import outcome

    facts = [
        ("operation", f"{view['id']} of {view['job']}, {view['kind']}, number {view['number']}"),
        ("state", " – ".join(part for part in (view["state"], _reason(view)) if part)),
        ("step", outcome.at(view) or "–"),
        ("asked", f"{output.clock(view['asked_at_ns'])}, by {view['by']}"),
        ("ended", output.clock(view["ended_at_ns"])),
        ("attempts", f"{view['attempts']}"),
    ]
    if view["values"]:
        facts.insert(1, ("values", outcome.assignments(view["values"])))
    if view["version"]:
        facts.append(("version", f"{view['version']} of the settings"))
    if view["why"]:
        facts.append(("why", view["why"]))
    if view["reverts"] is not None:
        facts.append(("reverts", f"back to version {view['reverts']}"))
    if view["unheard"]:
        facts.append(("unheard", f"rank {', '.join(map(str, view['unheard']))}"))
    for name, text in facts:
        print(f"{name:<10} {text}")
    outcome.show_differences(view["changed"])
    for rank, changed in view["differing"].items():
        print(f"  rank {rank}:")
        outcome.show_differences(changed, indent="    ")
    for rank, text in view["trouble"].items():
        print(f"rank {rank}:")
        print("\n".join(f"  {line}" for line in text.rstrip().splitlines()))
