"""`loom logs`: the output of workers, past and live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from torchloom.cli.options import JobArgument, JsonOption, api

if TYPE_CHECKING:
    from torchloom.cli.show.screen import Screen
    from torchloom.client import Client
    from torchloom.client.schema import LogView

MOST_SHOWN = 96 << 20
"""Most bytes to read of one rank: more than an agent keeps. Ends the read of a log that outgrows it."""
EXAMPLES = (
    ("loom logs train-3f9a", "the newest 100 lines of every rank"),
    ("loom logs train-3f9a -f --rank 1", "follow until the job ends"),
    ("loom logs train-3f9a --grep loss --tail 5", "the newest 5 lines with this text"),
    ("loom logs train-3f9a --since 10m", "all output of the last ten minutes"),
)


def command(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", help="Only this rank.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", help="Lines per rank.", show_default="100")] = None,
    grep: Annotated[str, typer.Option("--grep", metavar="TEXT", help="Only lines with this text.")] = "",
    since: Annotated[
        str,
        typer.Option("--since", metavar="TIME", help="Only newer lines: 10m, 2h, or 2026-03-01T12:00:00Z."),
    ] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Leave control characters as the script wrote them.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the newest lines of a job's logs, or follow them. With --since, all lines since then."""
    from torchloom import terminal
    from torchloom.cli.show import output

    terminal.in_use = terminal.in_use and not raw
    client = api()
    if follow:
        _follow(client, job, rank, tail, grep, since, as_json)
        return
    found = client.logs(job, rank=rank, tail=tail, grep=grep or None, since=since or None)
    if since and tail is None and not grep:
        for log in found["logs"]:
            _complete(client, job, log)
    if as_json:
        output.show_json(found)
        return
    from torchloom.cli.show.screen import Screen

    screen = Screen(live=False)
    for log in found["logs"]:
        _show(screen, log["rank"], log["text"], log["lost_bytes"])
        if log["error"]:
            screen.say(f"rank {log['rank']}: {log['error']}", "bad")
    _say_gaps(client, job, rank, screen)
    screen.flush()


def _say_gaps(client: Client, job: str, rank: int | None, screen: Screen) -> None:
    """A log that ends in the middle must not look whole."""
    from torchloom.cli.jobs.status import log_gap

    for worker in client.job(job)["workers"]:
        if worker["log_lost_bytes"] and rank in (None, worker["rank"]):
            screen.say(f"{log_gap(worker)}", "bad")


def _complete(client: Client, job: str, log: LogView) -> None:
    """Read to the current end of the log: one response holds less than a MiB per rank."""
    text = [log["text"]]
    while log["next_offset"] - log["offset"] < MOST_SHOWN:
        more = client.logs(job, rank=log["rank"], offset=log["next_offset"])["logs"][0]
        if more["error"] or not more["text"]:
            break
        text.append(more["text"])
        log["next_offset"] = more["next_offset"]
    log["text"] = "".join(text)


def _follow(
    client: Client, job: str, rank: int | None, tail: int | None, grep: str, since: str, as_json: bool
) -> None:
    """Follow until the stream sends `end`. A broken stream resumes where it broke; retries have no limit."""
    from torchloom.cli.show import output
    from torchloom.cli.show.screen import Screen
    from torchloom.client import NotAnswering

    screen = Screen(live=False)
    place, away, ended = "", False, False
    while True:
        try:
            for kind, id, body in client.log_stream(
                job, rank=rank, tail=tail, grep=grep or None, since=since or None, last_event_id=place
            ):
                place, away = id, False
                if as_json:
                    output.show_line({"event": kind} | body)
                elif kind == "log":
                    _show(screen, body["rank"], body["text"], body["lost_bytes"])
                    screen.flush()
                if kind == "end":
                    ended = True
                    break
        except NotAnswering as error:
            if not place and not away:
                raise
            if not away and not as_json:
                screen.say(f"{error.message}; waiting for it")
            away = True
        client.close()
        if ended:
            break
        time.sleep(0.5)
    if not as_json:
        _say_gaps(client, job, rank, screen)
        screen.flush()


def _show(screen: Screen, rank: int, text: str, lost_bytes: int) -> None:
    if lost_bytes:
        screen.say(f"{lost_bytes} bytes of rank {rank}'s log were dropped to bound its size")
    from torchloom.cli.show.screen import lines

    for line in lines(text) if text else ():
        screen.log(rank, line)
