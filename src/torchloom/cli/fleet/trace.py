"""`loom trace`: the recent steps and collectives of every rank, as a file for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from torchloom.cli.declared import option
from torchloom.cli.options import JobArgument, api

EXAMPLES = (
    ("loom trace train-3f9a -o trace.json", "then open it at ui.perfetto.dev or chrome://tracing"),
    ("loom trace train-3f9a --last 5s", "only the newest five seconds"),
)


def command(
    job: JobArgument,
    output: Annotated[Path, option("--output", "-o", metavar="FILE", help="File to write.")] = Path(
        "trace.json"
    ),
    last: Annotated[
        str,
        option("--last", metavar="TIME", help="Only the last 5s, 30s …; default: everything recorded."),
    ] = "",
) -> None:
    """Write the newest steps and collectives of all ranks to a trace file, with host clocks aligned.

    The black boxes keep the newest 256 steps and collectives of every rank.
    """
    import json

    from torchloom.core.history.trace import RankRecord, events, offsets_ns
    from torchloom.durations import parse_span
    from torchloom.errors import NotFound

    last_s = parse_span(last, "--last") if last else 0.0
    client = api()
    nodes = {one["rank"]: one["node"] for one in client.job(job)["workers"]}
    boxes = client.telemetry(job, newest=256)["workers"]
    ranks = [
        RankRecord(box["rank"], nodes.get(box["rank"], ""), box["steps"], box["collectives"])
        for box in boxes
        if box["found"]
    ]
    if not ranks:
        raise NotFound(
            f"No black box of {job} is readable", hint="check with `loom status` whether the job is running"
        )
    made = events(job, ranks, client.incidents(job=job), last_s)
    output.write_text(json.dumps({"traceEvents": made, "displayTimeUnit": "ms"}))
    shifted = sorted(abs(ns) / 1e6 for ns in offsets_ns(ranks).values())[-1]
    print(f"{output}: {len(ranks)} ranks, {len(made)} events; clocks of hosts differed by {shifted:.3g} ms")
    missing = [str(box["rank"]) for box in boxes if not box["found"]]
    if missing:
        print(f"without rank {', '.join(missing[:20])}: no black box could be read")
