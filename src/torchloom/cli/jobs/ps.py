"""`loom ps`: all jobs, newest last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torchloom.cli.options import JsonOption, LabelOption, WatchOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import JobSummary

EXAMPLES = (
    ("loom ps", "all jobs"),
    ("loom ps --active --watch", "live view of active jobs"),
    ("loom ps --state failed,stopped -l team=vision", "by state and label"),
    ("loom ps --active -q | xargs loom stop", "ids only"),
)


def command(
    active: Annotated[bool, typer.Option("--active", help="Only jobs that have not ended.")] = False,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only jobs in this state; repeatable."),
    ] = None,
    label: LabelOption = None,
    sort: Annotated[
        str, typer.Option("--sort", metavar="BY", help="submitted, ended, id or state; -BY for the reverse.")
    ] = "submitted",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the ids.")] = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """List jobs: state, progress and restarts."""
    from torchloom.cli.show import output
    from torchloom.cli.show.states import Sort, State, check

    states, order = check(state or (), State, "--state"), check([sort], Sort, "--sort")[0]
    client = api()

    def read() -> list[JobSummary]:
        return client.all_jobs(active=active, state=states, label=label, sort=order)

    def show(jobs: list[JobSummary]) -> None:
        if quiet:
            print("".join(f"{job['id']}\n" for job in jobs), end="")
        else:
            _table(jobs)

    if watch:
        from torchloom.cli.show import watching

        watching.watch(read, show, lines=list if as_json else None)
    elif as_json:
        output.show_json(read())
    else:
        show(read())
        output.show_troubles(client)


def _table(jobs: list[JobSummary]) -> None:
    from torchloom.cli.show import output

    columns = ("JOB", "STATE", "WORKERS", "STEP", "SPEED", "LOSS", "ETA", "RESTARTS", "GOODPUT", "TIME")
    # Most jobs are never changed: then there is nothing to show.
    changed = any(job["config_version"] for job in jobs)
    output.table(
        (*columns, *(("CONFIG",) if changed else ()), "REASON"),
        (
            (
                job["id"],
                output.state(job),
                f"{job['running_workers']}/{job['wanted_workers']}",
                output.steps(job),
                output.rate(job["steps_per_s"]),
                output.number(job["last_loss"]),
                output.time_left(job["eta_s"]),
                f"{job['restarts']}",
                output.percent(job["goodput"]),
                output.seconds(job["elapsed_s"]),
                *((f"v{job['config_version']}" if job["config_version"] else "–",) if changed else ()),
                job["reason"],
            )
            for job in jobs
        ),
        nothing="no jobs; start one with `loom run train.py`",
        spare=("TIME", "GOODPUT", "CONFIG", "LOSS", "RESTARTS", "WORKERS"),
    )
