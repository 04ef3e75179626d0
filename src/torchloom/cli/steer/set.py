"""`loom set`: change settings of a running job, on all ranks at the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from torchloom.cli.declared import argument, option
from torchloom.cli.options import JobArgument, JsonOption, api
from torchloom.cli.steer.outcome import TimeoutOption, WaitOption, WhyOption

if TYPE_CHECKING:
    from torchloom.client.schema import ChangePlanView, ChangeRequest

EXAMPLES = (
    ("loom set train-3f9a lr=1e-4", "every param group of every optimizer"),
    ("loom set train-3f9a lr@1=1e-4 betas=0.9,0.95", "several at once: all or none"),
    ("loom set train-3f9a lr=0.5 --scale", "half of the script's own schedule"),
    ("loom set train-3f9a lr=own", "return to the script's own value"),
    ("loom set train-3f9a max_steps=5000 --why 'converged'", "end there; the history keeps the reason"),
    ("loom set train-3f9a dropout=0.1 --at-step 2000", "takes effect at step 2000"),
    ("loom set train-3f9a lr=1e-4 --dry-run", "show what would change, change nothing"),
)


def command(
    job: JobArgument,
    settings: Annotated[list[str], argument(metavar="NAME=VALUE", help="As listed by `loom config JOB`.")],
    at_step: Annotated[
        int | None,
        option(
            "--at-step",
            metavar="N",
            min=1,
            help="First training step with the new value.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        bool,
        option(
            "--scale/--hold",
            help="Multiply the script's own value, or hold this value and ignore the script's schedule.",
        ),
    ] = False,
    dry_run: Annotated[bool, option("--dry-run", help="Only show what would change.")] = False,
    why: WhyOption = "",
    wait: WaitOption = True,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change settings of a running job, on all ranks at the same step or on none.

    Exit code 5, with the ranks' tracebacks, if it was not applied; 2 if a name or value is not allowed.
    """
    from torchloom.cli.jobs.replicas import steered
    from torchloom.cli.steer import outcome

    body: ChangeRequest = {"values": parse(settings, scale), "mode": "scale" if scale else "hold", "why": why}
    if at_step is not None:
        body["at_step"] = at_step
    if dry_run:
        body["dry_run"] = True
    client = api()
    named, job = job, steered(client, job)
    plan = client.change(job, body)
    if only_planned(plan, dry_run or not wait, as_json):
        return
    view = outcome.follow(
        client, job, plan["operation"], timeout, quiet=as_json, patient=plan["at_step"] is not None
    )
    outcome.conclude(
        view, f"{named}: version {view['version']} applied on all ranks at {outcome.at(view)}", as_json
    )


def parse(settings: list[str], scale: bool) -> dict[str, Any]:
    """Names and values as typed; the service knows their types. A factor is always a number."""
    from torchloom.errors import UsageError

    found: dict[str, Any] = {}
    for text in settings:
        name, equals, given = text.partition("=")
        name = name.strip()
        if not name or not equals:
            raise UsageError(f"{text!r} is not of the form NAME=VALUE", hint="write for example lr=1e-4")
        if name in found:
            raise UsageError(f"{name} is given twice", hint="name it once")
        found[name] = _factor(name, given) if scale else given
    return found


def _factor(name: str, given: str) -> float:
    from torchloom.errors import UsageError

    try:
        return float(given)
    except ValueError:
        raise UsageError(f"{name} cannot be scaled by {given!r}", hint="give a number, at least 0") from None


def only_planned(plan: ChangePlanView, enough: bool, as_json: bool) -> bool:
    """Print the plan's notes and, if it is `enough`, the plan itself. Returns whether it was."""
    import sys

    from torchloom.cli.show import output

    for note in () if as_json else plan["notes"]:
        print(f"loom: {note.rstrip('.')}.", file=sys.stderr)
    if enough and as_json:
        output.show_json(plan)
    elif enough:
        show_plan(plan)
    return enough


def show_plan(plan: ChangePlanView) -> None:
    """Print what would change, or what was requested."""
    from torchloom.cli.steer import outcome

    when = f"at step {plan['at_step']}" if plan["at_step"] is not None else "as soon as all ranks can"
    if plan["dry_run"]:
        print(f"{plan['job']}: would be set on all ranks {when}")
    else:
        print(f"{plan['operation']} in progress, {when}; `loom operations {plan['job']} {plan['operation']}`")
    outcome.show_differences(plan["differences"])
