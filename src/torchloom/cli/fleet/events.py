"""`loom events`: past events, and new ones as they happen."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any

from torchloom.cli.declared import option
from torchloom.cli.options import AnyJobArgument, JsonOption, api

if TYPE_CHECKING:
    from torchloom.client import Client

EXAMPLES = (
    ("loom events", "the newest 50"),
    ("loom events train-3f9a --since 10m", "of one job"),
    ("loom events -f --topic incident --json", "each incident as one line of JSON, as it happens"),
)

AGAIN_AFTER_S = 0.5


def command(
    job: AnyJobArgument = None,
    follow: Annotated[bool, option("--follow", "-f", help="Follow until Ctrl-C.")] = False,
    topic: Annotated[
        list[str] | None,
        option(
            "--topic",
            metavar="TOPIC",
            help="Only job, worker, incident, node, device, config or system; repeatable.",
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        option("--kind", metavar="KIND", help="Only this kind of event, such as worker-exited; repeatable."),
    ] = None,
    tail: Annotated[int, option("--tail", min=0, help="Number of past events to show.")] = 50,
    since: Annotated[
        str | None, option("--since", metavar="SPAN", help="Only events of the past 30s, 10m, 2h.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show events of jobs, workers, nodes and devices, or follow them."""
    from torchloom.cli.show import output
    from torchloom.cli.show.states import Topic, check
    from torchloom.durations import parse_span

    wanted: dict[str, Any] = {"topic": check(topic or (), Topic, "--topic"), "kind": kind, "job": job}
    oldest_ns = 0 if since is None else time.time_ns() - int(parse_span(since, "--since") * 1e9)
    client = api()
    past: deque[dict[str, Any]] = deque(maxlen=tail)
    place = "0"
    for name, id, body in client.events(after=0, follow=False, **wanted):
        place = id
        if name == "reset":
            past.clear()
        elif body["at_ns"] >= oldest_ns:
            past.append(body)
    if as_json and not follow:
        output.show_json(list(past))
        return
    for body in past:
        show(body, as_json)
    if follow:
        _follow(client, place, wanted, as_json)
    elif not past:
        print("no events")


def _follow(client: Client, place: str, wanted: dict[str, Any], as_json: bool) -> None:
    """Follow without end. A broken stream resumes where it broke."""
    import sys

    from torchloom.client import NotAnswering, Unavailable

    away = False
    while True:
        try:
            for name, id, body in client.events(last_event_id=place, **wanted):
                place, away = id, False
                if name == "reset":
                    print(f"loom: {body['reason']}.", file=sys.stderr)
                else:
                    show(body, as_json)
        except (NotAnswering, Unavailable) as error:
            if not away:
                print(f"loom: {error.message}; waiting for it", file=sys.stderr)
            away = True
        client.close()
        time.sleep(AGAIN_AFTER_S)


def show(body: dict[str, Any], as_json: bool) -> None:
    """Print one event and what it changed."""
    from torchloom.cli.show import output

    if as_json:
        output.show_line(body)
        return
    print(f"{output.clock(body['at_ns'])}  {body['topics'][0]:<8}  {body['text']}", flush=True)
    for line in consequences(body):
        print(f"{'':>8}  {'':<8}  → {line}", flush=True)


def consequences(body: dict[str, Any]) -> list[str]:
    """The new states of jobs and incidents, one sentence each."""
    from torchloom.cli.fleet.incidents import sentence

    found = []
    for change in body["incidents"]:
        found.append(f"incident {change['id']}: {sentence(change) if change['open'] else 'over'}")
    said = " ".join(found)
    for change in body["jobs"]:
        why = "" if change["reason"].rstrip(".") in said else f": {change['reason']}"
        found.append(f"{change['id']} {change['state']}{why}")
    return found
