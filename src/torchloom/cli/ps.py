"""`loom ps`: all jobs, newest last."""

from __future__ import annotations

from typing import Annotated

import typer

from torchloom.cli.options import HomeOption, JsonOption, api


def command(
    active: Annotated[bool, typer.Option("--active", help="Only jobs that have not ended.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List jobs with state, progress and restarts."""
    from torchloom.cli import output

    jobs = api(home).get("/jobs", active=active)
    if as_json:
        output.show_json(jobs)
        return
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
