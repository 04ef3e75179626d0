"""`loom status`: one job with its workers and what went wrong."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torchloom.cli.options import HomeOption, JsonOption, api


def command(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show a job: state, progress, every worker, incidents."""
    from torchloom.cli import output

    view = api(home).get(f"/jobs/{job}")
    if as_json:
        output.show_json(view)
        return
    for name, text in _facts(view):
        print(f"{name:<10} {text}")
    print()
    output.table(
        ("RANK", "STATE", "NODE", "PID", "STEPS", "STEP TIME", "PHASE", "DEVICES", "DOING"),
        (_worker(worker) for worker in view["workers"]),
        nothing="no workers yet",
    )
    if view["incident_list"]:
        print()
        from torchloom.cli.incidents import show

        show(view["incident_list"])


def _facts(view: dict[str, Any]) -> list[tuple[str, str]]:
    from torchloom.cli import output

    what = "training step" if view["step_is_training"] else "steps of this generation"
    facts = [
        ("job", view["id"]),
        ("state", f"{view['state']} – {view['reason']}"),
        ("program", " ".join([view["program"], *view["args"]])),
        ("progress", f"{output.steps(view)} {what}, {output.rate(view['steps_per_s'])}"),
        ("restarts", f"{view['restarts']} of {view['max_restarts']}, generation {view['generation']}"),
        ("goodput", f"{output.percent(view['goodput'])} of {output.seconds(view['elapsed_s'])}"),
        ("started", f"{output.clock(view['started_at_ns'])}, by {view['by']}"),
    ]
    if view["eta_s"] is not None:
        facts.insert(4, ("eta", output.time_left(view["eta_s"])))
    return facts


def _worker(worker: dict[str, Any]) -> tuple[str, ...]:
    from torchloom.cli import output

    doing = worker["exit"] or worker["collective"]
    if worker["in_collective_s"] > 1 and not worker["exit"]:
        doing += f" for {output.seconds(worker['in_collective_s'])}"
    if worker["blind"]:
        doing = f"no telemetry: {worker['blind']}"
    return (
        f"{worker['rank']}",
        worker["state"],
        worker["node"],
        f"{worker['pid'] or '–'}",
        f"{worker['steps']}",
        output.step_time(worker["step_s"]),
        worker["phase"] or "–",
        ", ".join(device["device"] for device in worker["devices"]) or "–",
        doing,
    )
