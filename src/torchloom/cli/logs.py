"""`loom logs`: what workers printed, and what they print."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from torchloom.cli.options import HomeOption, JsonOption, api


def command(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", help="Only this rank.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", help="Lines per rank.", show_default="100")] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show the newest lines of a job's logs, or follow them."""
    from torchloom.cli import output

    client = api(home)
    if follow:
        _follow(client, job, rank, tail, as_json)
        return
    found = client.get(f"/jobs/{job}/logs", rank=rank, tail=100 if tail is None else tail)
    if as_json:
        output.show_json(found)
        return
    from torchloom.cli.screen import Screen

    screen = Screen(live=False)
    for log in found["logs"]:
        _show(screen, log)
        if log.get("error"):
            screen.say(f"rank {log['rank']}: {log['error']}", "bad")
    screen.flush()


def _follow(client: Any, job: str, rank: int | None, tail: int | None, as_json: bool) -> None:
    """Until the stream says `end`. A stream that breaks is taken up where it was, for as long as it takes."""
    import json

    from torchloom.cli.client import NotAnswering
    from torchloom.cli.screen import Screen

    screen = Screen(live=False)
    place, away = "", False
    while True:
        try:
            for kind, id, body in client.stream(f"/jobs/{job}/logs/stream", place, rank=rank, tail=tail):
                place, away = id, False
                if as_json:
                    print(json.dumps({"event": kind} | body), flush=True)
                elif kind == "log":
                    _show(screen, body)
                    screen.flush()
                if kind == "end":
                    return
        except NotAnswering as error:
            if not place and not away:
                raise
            if not away and not as_json:
                screen.say(f"{error.message}; waiting for it")
            away = True
        client.close()
        time.sleep(0.5)


def _show(screen: Any, log: dict[str, Any]) -> None:
    if log["lost_bytes"]:
        screen.say(f"{log['lost_bytes']} bytes of rank {log['rank']}'s log were dropped to bound its size")
    from torchloom.cli.screen import lines

    for line in lines(log["text"]) if log["text"] else ():
        screen.log(log["rank"], line)
