"""`loom submit`: start a job like `loom run` and return with its id."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchloom.home import Home

if TYPE_CHECKING:
    from torchloom.cli.client import Api

SUBMIT_WITHIN_S = 15.0


def main(argv: Sequence[str]) -> int:
    from torchloom.cli import flags
    from torchloom.cli.request import job_request

    options = flags.parse("submit", argv)
    if options.home:
        os.environ["LOOM_HOME"] = os.path.abspath(os.path.expanduser(options.home))
    return submit(options, job_request(options, os.environ, os.getcwd()))


def submit(options: Namespace, body: dict[str, Any]) -> int:
    """Send the job to a stack that stays, started if there is none."""
    from torchloom.cli import parts, stack
    from torchloom.errors import LoomError

    home = Home.default()
    if "LOOM_ADDRESS" not in os.environ:
        home.prepare()
        # A job that nobody follows needs a stack that lives until `loom down`.
        stayed = parts.stays(home)
        parts.stay(home)
        try:
            stack.Start(home).begin().wait()
        except LoomError:
            if not stack.is_supervised(home):
                parts.end_stay(home)
            raise
        if not stayed:
            print("loom: torchloom stays up in the background; `loom down` ends it.", file=sys.stderr)
    job = send(home, body)
    print(json.dumps({"job": job}) if options.json else job)
    return 0


def send(home: Home, body: dict[str, Any]) -> str:
    """Submit once, also if the connection breaks meanwhile: the name tells whether it was taken."""
    import time

    from torchloom.cli import stack
    from torchloom.cli.client import Api, Endpoint, NotAnswering, Unavailable
    from torchloom.errors import Conflict

    deadline = time.monotonic() + SUBMIT_WITHIN_S
    tried = False
    while True:
        try:
            api = Api(Endpoint.find(home))
            check_nodes(api, body)
            return str(api.post("/jobs", body)["job"])
        except Conflict:
            if not tried:
                raise
            return str(body["name"])
        except (NotAnswering, Unavailable):
            if time.monotonic() > deadline:
                raise
            tried = True
        if "LOOM_ADDRESS" not in os.environ:
            stack.begin(home)
        time.sleep(0.2)


def check_nodes(api: Api, body: dict[str, Any]) -> None:
    """More hosts than are connected would wait for ever: say so now."""
    from torchloom.errors import UsageError

    wanted = int(body["nodes"])
    if wanted > 1:
        ready = sum(node["state"] == "ready" for node in api.get("/nodes"))
        if ready < wanted:
            raise UsageError(
                f"{wanted} nodes were asked for and {ready} are connected",
                hint="start `loom agent` on the others, or use --nnodes 1",
            )
