"""`loom submit`: start a job like `loom run` and return with its id."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    from torchloom.cli.client import Api, Endpoint
    from torchloom.home import Home

    home = Home.default()
    if "LOOM_ADDRESS" in os.environ:
        endpoint = Endpoint.find(home)
    else:
        home.prepare()
        supervisor = stack.begin(home)
        # A job that nobody follows needs a stack that lives until `loom down`.
        if not parts.stays(home):
            parts.stay(home)
            print("loom: torchloom stays up in the background; `loom down` ends it.", file=sys.stderr)
        endpoint = stack.wait_ready(home, supervisor)
    job = send(Api(endpoint), body)
    print(json.dumps({"job": job}) if options.json else job)
    return 0


def send(api: Api, body: dict[str, Any]) -> str:
    """Submit once, also if the connection breaks meanwhile: the name tells whether it was taken."""
    import time

    from torchloom.cli.client import NotAnswering
    from torchloom.errors import Conflict

    check_nodes(api, body)
    deadline = time.monotonic() + SUBMIT_WITHIN_S
    tried = False
    while True:
        try:
            return str(api.post("/jobs", body)["job"])
        except Conflict:
            if not tried:
                raise
            return str(body["name"])
        except NotAnswering:
            if time.monotonic() > deadline:
                raise
            tried = True
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
