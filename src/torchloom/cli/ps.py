"""`loom ps`: all jobs, newest last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torchloom.cli.options import JsonOption, WatchOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import JobSummary

EXAMPLES = (
    ("loom ps", "all jobs"),
    ("loom ps --active --watch", "what runs, always up to date"),
    ("loom ps -q | xargs loom stop", "ids only"),
)


def command(
    active: Annotated[bool, typer.Option("--active", help="Only jobs that have not ended.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the ids.")] = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """List jobs with state, progress and restarts."""
    from torchloom.cli import output

    client = api()

    def read() -> list[JobSummary]:
        return client.jobs(active=active)

    def show(jobs: list[JobSummary]) -> None:
        if quiet:
            print("".join(f"{job['id']}\n" for job in jobs), end="")
        else:
            _table(jobs)

    if watch:
        from torchloom.cli import live

        live.watch(read, show, lines=list if as_json else None)
    elif as_json:
        output.show_json(read())
    else:
        show(read())


def _table(jobs: list[JobSummary]) -> None:
    from torchloom.cli import output

    output.table(
        ("JOB", "STATE", "WORKERS", "STEP", "SPEED", "ETA", "RESTARTS", "GOODPUT", "RUNNING", "REASON"),
        (
            (
                job["id"],
                job["state"],
                f"{job['running_workers']}/{job['world_size']}",
                output.steps(job),
                output.rate(job["steps_per_s"]),
                output.time_left(job["eta_s"]),
                f"{job['restarts']}",
                output.percent(job["goodput"]),
                output.seconds(job["elapsed_s"]),
                job["reason"],
            )
            for job in jobs
        ),
        nothing="no jobs; start one with `loom run train.py`",
    )
