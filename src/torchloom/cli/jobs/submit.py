"""`loom submit`: start a job like `loom run` and return its id."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchloom.home import Home

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import JobRequest

SUBMIT_WITHIN_S = 15.0


def main(argv: Sequence[str]) -> int:
    from torchloom.cli.jobs import flags
    from torchloom.cli.jobs.request import choose_place, job_request

    options = flags.parse("submit", argv)
    choose_place(options)
    return submit(options, job_request(options, os.environ, os.getcwd()))


def submit(options: Namespace, body: JobRequest) -> int:
    """Send the job to a stack that stays up; start one if there is none."""
    from torchloom.cli.service import parts, stack
    from torchloom.errors import LoomError

    home = Home.default()
    if "LOOM_ADDRESS" not in os.environ:
        home.prepare()
        # Nobody follows this job, so its stack must live until `loom down`.
        stayed = parts.stays(home)
        parts.stay(home)
        try:
            stack.Start(home).begin().wait()
        except LoomError:
            if not stack.is_supervised(home):
                parts.end_stay(home)
            raise
        if not stayed:
            print("loom: torchloom stays up in the background; `loom down` stops it.", file=sys.stderr)
    if options.replicas is not None:
        from torchloom.cli.jobs.replicas import replica_requests, send_all

        jobs = send_all(home, replica_requests(options, body))
        print(json.dumps({"jobs": jobs}) if options.json else "\n".join(jobs))
        return 0
    job = send(home, body)
    print(json.dumps({"job": job}) if options.json else job)
    return 0


def send(home: Home, body: JobRequest) -> str:
    """Submit exactly once, even if the connection breaks: the key identifies a repeated request."""
    import secrets
    import time

    from torchloom.cli.service import stack
    from torchloom.client import Client, Endpoint, NotAnswering, Unavailable

    deadline = time.monotonic() + SUBMIT_WITHIN_S
    key = secrets.token_hex(16)
    while True:
        try:
            api = Client(Endpoint.find(home))
            check_nodes(api, body)
            return str(api.submit(body, idempotency_key=key)["job"])
        except (NotAnswering, Unavailable):
            if time.monotonic() > deadline:
                raise
        if "LOOM_ADDRESS" not in os.environ:
            stack.begin(home)
        time.sleep(0.2)


def check_nodes(api: Client, body: JobRequest) -> None:
    """A job that asks for more hosts than are connected would wait forever: refuse it now, unless
    waiting is what --queue asks for."""
    from torchloom.errors import UsageError

    wanted = int(body["nodes"] or 1)
    if wanted > 1 and not body.get("queue"):
        ready = sum(node["state"] == "ready" for node in api.nodes())
        if ready < wanted:
            raise UsageError(
                f"the job needs {wanted} nodes, but only {ready} are connected",
                hint="start `loom agent` on the others, use --nnodes 1, or wait for them with --queue",
            )
