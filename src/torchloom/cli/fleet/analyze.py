"""`loom analyze`: what Flight Recorder dumps say about a hang, of any job. Needs no control service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import EndVerb, argument, option
from torchloom.cli.options import JsonOption

if TYPE_CHECKING:
    from torchloom.cli.fleet.dump_files import DumpFiles
    from torchloom.core.flight.analysis import Analysis

EXAMPLES = (
    ("loom analyze /tmp/traces", "one file per rank, pickle or JSON, as torch writes them"),
    ("loom analyze /tmp/traces --prefix nccl_trace_rank_", "only those of one job"),
    ("loom analyze rank_0.json rank_1.json --json", "the same for a program"),
)


def command(
    paths: Annotated[
        list[Path], argument(metavar="DIR|FILE…", help="A directory of dumps, or the files themselves.")
    ],
    prefix: Annotated[
        str | None,
        option("--prefix", "-p", help="Begin of the file names, up to the rank.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read dumps of torch's Flight Recorder and say who holds the job up.

    The job need not have run under torchloom. Nothing in the files is executed. Exit code 0: no fault seen;
    1: a fault; 3: no dumps.
    """
    from torchloom.cli.fleet.dump_files import read
    from torchloom.core.flight.analysis import analyze

    found = read(paths, prefix)
    analysis = analyze(found.dumps, found.seen_ns)
    if as_json:
        _show_json(found, analysis)
    else:
        _show(found, analysis)
    if analysis.kind != "no-fault":
        raise EndVerb(1)


def _show_json(found: DumpFiles, analysis: Analysis) -> None:
    import msgspec

    from torchloom.cli.show import output

    plain = msgspec.to_builtins(analysis)
    for line in plain["table"]:
        line["file"] = found.files[line["rank"]]
    output.show_json({**plain, "unreadable": found.unreadable})


def _show(found: DumpFiles, analysis: Analysis) -> None:
    from torchloom.cli.show import output
    from torchloom.terminal import visible

    print(f"verdict    {visible(analysis.verdict)}")
    for number, line in enumerate(analysis.mismatches):
        print(f"{'mismatch' if number == 0 else '':<10} {visible(line)}")
    for number, line in enumerate((*analysis.notes, *found.unreadable)):
        print(f"{'note' if number == 0 else '':<10} {visible(line)}")
    print()
    output.table(
        ("RANK", "GROUP", "DONE", "WAITS IN", "STATE", "FOR", "ENTRIES", "LAST CALL"),
        (
            (
                f"{one.rank}{' *' if one.rank in analysis.ranks else ''}",
                visible(one.group) or "–",
                f"#{one.done}" if one.done else "–",
                visible(one.waits_in) or "–",
                one.state or "–",
                output.seconds(one.since_s),
                str(one.entries),
                visible(one.place) or "–",
            )
            for one in analysis.table
        ),
        nothing="",
        spare=("ENTRIES", "STATE"),
    )
