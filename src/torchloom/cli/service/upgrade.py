"""`loom upgrade`: which version runs where, and whether this one can take over. Replaces nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import EndVerb, option
from torchloom.cli.options import JsonOption, api

if TYPE_CHECKING:
    from torchloom.cli.service.upgrade_plan import UpgradePlan
    from torchloom.client import Client
    from torchloom.client.schema import Versions

EXAMPLES = (
    ("loom upgrade --check", "which version runs where, and in which order to replace the parts"),
    ("loom upgrade --check --json | jq .problems", "for a script; exit code 5: do not upgrade"),
)


def command(
    check: Annotated[bool, option("--check", help="Report; nothing is changed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Report which version of torchloom runs where, whether this version reads what the others wrote, and in
    which order to replace them.

    Exit code 0: this version can take over. 5: it cannot, or parts that run do not fit together.
    """
    from torchloom import __version__
    from torchloom.cli.service.upgrade_plan import make_plan
    from torchloom.cli.show import output
    from torchloom.errors import Conflict, UsageError

    if not check:
        raise UsageError(
            "torchloom does not install itself", hint="`loom upgrade --check` reports what to replace"
        )
    plan = make_plan(_found(api()), __version__)
    if as_json:
        output.show_json(_in_json(plan))
    else:
        _show(plan)
    if not plan.ok:
        raise EndVerb(Conflict.exit_code)


def _found(client: Client) -> Versions:
    """What the service says; of one that has no answer yet, what can be read from its older ones."""
    from torchloom.errors import NotFound
    from torchloom.wire.schema_versions import BEFORE

    try:
        return client.versions()
    except NotFound:
        health = client.health()
        workers = [(job["id"], job["running_workers"]) for job in client.jobs(active=True)]
        return {
            "services": [
                {"name": "this one", "version": health["version"], "leads": health["active"], "blocked": ""}
            ],
            "nodes": [
                {"node": node["id"], "state": node["state"], "version": "", "refused": ""}
                for node in client.nodes()
            ],
            "jobs": [{"job": job, "workers": {"": alive}} for job, alive in workers if alive],
            "schemas": dict(BEFORE),
        }


def _in_json(plan: UpgradePlan) -> dict[str, object]:
    return {
        "version": plan.version,
        "ok": plan.ok,
        "problems": plan.problems,
        "steps": plan.steps,
        "parts": [
            {"kind": part.kind, "name": part.name, "version": part.version, "note": part.note}
            for part in plan.parts
        ],
        "schemas": [
            {
                "schema": one.schema,
                "written": one.theirs,
                "reads_from": one.reads_from,
                "reads_to": one.reads_to,
                "stored": one.stored,
                "ok": one.ok,
            }
            for one in plan.schemas
        ],
    }


def _show(plan: UpgradePlan) -> None:
    from torchloom.cli.show import output

    output.table(
        ("PART", "NAME", "VERSION", "STATE"),
        ((part.kind, part.name, part.shown, part.note) for part in plan.parts),
        nothing="nothing runs",
    )
    print(f"\nThis torchloom is {plan.version}.")
    stored = [one for one in plan.schemas if one.stored and one.ok]
    if stored:
        print("It reads what is stored:")
        for one in stored:
            print(f"  {one.schema}, version {one.theirs}")
    for problem in plan.problems:
        print(f"problem: {problem}")
    if plan.steps:
        print("\nIn this order:" if plan.ok else "\nWhen that is mended, in this order:")
        for at, step in enumerate(plan.steps, 1):
            print(f"{at:>3}. {step}")
    elif plan.ok:
        print("Every part has this version.")
