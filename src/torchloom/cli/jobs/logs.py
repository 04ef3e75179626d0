"""`loom logs`: the output of workers, past and live."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import option
from torchloom.cli.options import JobArgument, JsonOption, api

if TYPE_CHECKING:
    from torchloom.cli.show.screen import Screen
    from torchloom.client import Client
    from torchloom.client.schema import LogLine, LogView

MOST_SHOWN = 96 << 20
"""Most bytes to read of one rank: more than an agent keeps. Ends the read of a log that outgrows it."""
EXAMPLES = (
    ("loom logs train-3f9a", "the newest 100 lines of every rank"),
    ("loom logs train-3f9a -f --rank 1", "follow until the job ends"),
    ("loom logs train-3f9a --grep loss --tail 5", "the newest 5 lines with this text"),
    ("loom logs train-3f9a --since 10m", "all output of the last ten minutes"),
    ("loom logs train-3f9a --timestamps", "with the time of each line"),
)


def command(
    job: JobArgument,
    follow: Annotated[bool, option("--follow", "-f", help="Follow until the job ends.")] = False,
    rank: Annotated[int | None, option("--rank", help="Only this rank.")] = None,
    tail: Annotated[int | None, option("--tail", help="Lines per rank.", show_default="100")] = None,
    grep: Annotated[str, option("--grep", metavar="TEXT", help="Only lines with this text.")] = "",
    since: Annotated[
        str,
        option("--since", metavar="TIME", help="Only newer lines: 10m, 2h, or 2026-03-01T12:00:00Z."),
    ] = "",
    timestamps: Annotated[
        bool, option("--timestamps", "-t", help="Show when each line was printed.")
    ] = False,
    raw: Annotated[
        bool,
        option("--raw", help="Print what the script wrote: all states of bars, all control characters."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the newest lines of a job's logs, or follow them. With --since, all lines since then.

    Lines of several ranks are in the order in which they were printed.
    """
    import os

    from torchloom import terminal
    from torchloom.cli.show import output
    from torchloom.cli.show.screen import Screen

    raw = raw or os.environ.get("LOOM_RAW") == "1"
    terminal.in_use = terminal.in_use and not raw
    client = api()
    client.keep_text = not as_json  # the screen makes it safe
    if follow:
        screen = Screen(live=sys.stderr.isatty(), timestamps=timestamps, raw=raw)
        _follow(client, job, rank, tail, grep, since, None if as_json else screen)
        return
    read = partial(client.logs, job, rank=rank, tail=tail, grep=grep or None, since=since or None)
    whole = bool(since) and tail is None and not grep
    if as_json:
        found = read()
        for log in found["logs"] if whole else ():
            _complete(client, job, log)
        output.show_json(found)
        return
    screen = Screen(live=False, timestamps=timestamps, raw=raw)
    # Unless more is read below, after which the line without an end would no longer be the last one.
    found = read(interleaved=True, unfinished=not whole)
    lines = list(found["lines"])
    for log in found["logs"] if whole else ():
        lines += _rest(client, job, log)
    lines.sort(key=lambda line: line["at_ns"])  # stable: lines of one rank stay in order
    for log in found["logs"]:
        if log["lost_bytes"]:
            _say_lost(screen, log["rank"], log["lost_bytes"])
    for line in lines:
        screen.output(line["rank"], line["text"], line["at_ns"])
    screen.finish()
    for log in found["logs"]:
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


def _rest(client: Client, job: str, log: LogView) -> Iterator[LogLine]:
    """The lines up to the current end of the log."""
    while log["next_offset"] - log["offset"] < MOST_SHOWN:
        more = client.logs(job, rank=log["rank"], offset=log["next_offset"], interleaved=True)
        if more["logs"][0]["error"] or not more["lines"]:
            break
        yield from more["lines"]
        log["next_offset"] = more["logs"][0]["next_offset"]


def _follow(
    client: Client,
    job: str,
    rank: int | None,
    tail: int | None,
    grep: str,
    since: str,
    screen: Screen | None,
) -> None:
    """Follow until the stream sends `end`. A broken stream resumes where it broke; retries have no limit.

    Without a screen, as JSON.
    """
    from torchloom.cli.show import output
    from torchloom.client import NotAnswering

    bars = screen is not None and screen.wants_bars
    place, away, ended = "", False, False
    while True:
        try:
            for kind, id, body in client.log_stream(
                job,
                rank=rank,
                tail=tail,
                grep=grep or None,
                since=since or None,
                unfinished=bars,
                last_event_id=place,
            ):
                place, away = id, False
                if screen is None:
                    output.show_line({"event": kind} | body)
                elif kind == "log":
                    if body["lost_bytes"]:
                        _say_lost(screen, body["rank"], body["lost_bytes"])
                    screen.output(body["rank"], body["text"], body.get("at_ns", 0))
                    screen.flush()
                elif kind == "unfinished":
                    screen.unfinished(body["rank"], body["text"])
                    screen.flush()
                if kind == "end":
                    ended = True
                    break
        except NotAnswering as error:
            if not place and not away:
                raise
            if not away and screen is not None:
                screen.say(f"{error.message}; waiting for it")
            away = True
        client.close()
        if ended:
            break
        time.sleep(0.5)
    if screen is not None:
        screen.close()
        _say_gaps(client, job, rank, screen)
        screen.flush()


def _say_lost(screen: Screen, rank: int, lost_bytes: int) -> None:
    screen.say(f"{lost_bytes} bytes of rank {rank}'s log were dropped to bound its size")
