"""`loom stop`: end a job at a step boundary, or at once, and wait until it has ended."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchloom.cli.options import HomeOption, JsonOption, api

if TYPE_CHECKING:
    from torchloom.cli.client import Api

STOP_WITHIN_S = 300.0


def command(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    kill: Annotated[bool, typer.Option("--kill", help="SIGKILL at once, no step boundary.")] = False,
    grace: Annotated[
        float | None, typer.Option("--grace", help="Seconds between SIGTERM and SIGKILL.", metavar="S")
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Stop a job at its next step boundary and wait until it has ended."""
    client = api(home)
    before = client.get(f"/jobs/{job}")
    if not before["ended"]:
        client.post(f"/jobs/{job}/stop", {"kill": kill, "grace_s": grace})
    end = wait_ended(client, job, quiet=as_json)
    if as_json:
        import json

        print(json.dumps(end))
    elif before["ended"]:
        print(f"{job} had already ended: {end['state']}")
    else:
        print(f"{job} {end['state']}: {end['reason']}")


def wait_ended(client: Api, job: str, quiet: bool) -> dict[str, Any]:
    """The job as it is when it has ended; tells on a terminal what it waits for."""
    from torchloom.cli.screen import Screen
    from torchloom.errors import TimedOut

    deadline = time.monotonic() + STOP_WITHIN_S
    screen = Screen(live=not quiet and sys.stderr.isatty())
    after = -1
    try:
        while time.monotonic() < deadline:
            view: dict[str, Any] = client.get(f"/jobs/{job}", after=after, wait_s=1.0)
            if view["ended"]:
                return view
            after = view["seq"]
            screen.status(
                f"{job} {view['state']} · {view['running_workers']} workers left · {view['reason']}"
            )
    finally:
        screen.close()
    raise TimedOut(f"{job} has not ended within {STOP_WITHIN_S:g} s", hint=f"use `loom stop --kill {job}`")
