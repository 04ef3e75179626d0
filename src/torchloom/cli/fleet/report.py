"""`loom report`: a job as one HTML file for people who have no access to the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from torchloom.cli.declared import option
from torchloom.cli.options import JobArgument, api

EXAMPLES = (
    ("loom report train-3f9a", "writes train-3f9a.html: curves, ranks over time, incidents, changes"),
    ("loom report train-3f9a -o report.html --last 2h", "only the curves of the last two hours"),
)


def command(
    job: JobArgument,
    output: Annotated[
        Path | None, option("--output", "-o", metavar="FILE", help="File to write; default: JOB.html.")
    ] = None,
    last: Annotated[
        str, option("--last", metavar="TIME", help="Curves of the last 30s, 2h …; default: all.")
    ] = "",
) -> None:
    """Write a job to one self-contained HTML file that opens offline: curves, ranks, incidents, changes."""
    from torchloom.durations import parse_span
    from torchloom.errors import LoomError
    from torchloom.report.job import JobRecord, job_page

    last_s = parse_span(last, "--last") if last else 0.0
    client = api()
    detail = client.job(job)
    try:
        checkpoints = client.checkpoints(job)["checkpoints"]
    except LoomError:  # a store that does not answer must not cost the report
        checkpoints = []
    record = JobRecord(
        job=detail,
        series=client.series(job, last_s=last_s, points=600),
        ranks=client.rank_series(job, what="own", last_s=last_s, columns=180, rows=128),
        incidents=[client.incident(one["id"]) for one in client.incidents(job=job)],
        changes=client.config_history(job),
        checkpoints=checkpoints,
    )
    path = output or Path(f"{detail['id']}.html")
    path.write_text(job_page(record), encoding="utf-8")
    print(f"{path}: {len(record.series['series'])} curves, {len(record.incidents)} incidents")
