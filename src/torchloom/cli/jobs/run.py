"""`loom run`: run a script under supervision, follow it, and exit with its status.

If no stack runs for this home, `loom run` starts one in the background, which ends with the job.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchloom.home import Home

if TYPE_CHECKING:
    from torchloom.client.schema import JobRequest


def main(argv: Sequence[str]) -> int:
    from torchloom.cli.jobs import flags
    from torchloom.cli.jobs.request import choose_place, job_request

    options = flags.parse("run", argv)
    choose_place(options)
    shown = flags.shown_ranks(options)
    here = not options.detach and "LOOM_ADDRESS" not in os.environ
    body = job_request(options, os.environ, os.getcwd(), whole_shell=here)
    if options.detach:
        from torchloom.cli.jobs.submit import submit

        return submit(options, body)
    if "LOOM_ADDRESS" in os.environ:
        return _follow(Home.default(), options, body, shown, local=False)
    home = Home.default()
    home.prepare()
    return _with_stack(home, options, body, shown)


def _with_stack(home: Home, options: Namespace, body: JobRequest, shown: frozenset[int] | None) -> int:
    """Keep a stack of this home alive while the job runs. Without `loom up` it ends with its last holder."""
    from torchloom.cli.service import parts
    from torchloom.cli.service.early_spawner import EarlySpawner

    if options.spawn == "cold":
        os.environ["LOOM_PREWARM"] = "0"
    holder = parts.hold(home)
    early = None
    try:
        early = EarlySpawner.begin(home, body)  # first: it imports torch, which everything else waits for
        if early is not None:
            early.wait_for_library()
        from torchloom.cli.service import stack

        start = stack.Start(home).begin()
        # The supervisor is starting: imports from here on cost no extra time.
        from torchloom.cli.jobs import follow  # noqa: F401
        from torchloom.cli.jobs.first_build import compile_first

        compile_first(body)
        start.wait()
        return _follow(home, options, body, shown, local=True)
    finally:
        parts.forget(home, holder.name)
        let_go(home)
        if early is not None:
            early.end()


def _follow(
    home: Home, options: Namespace, body: JobRequest, shown: frozenset[int] | None, local: bool
) -> int:
    from torchloom.cli.jobs.follow import Follower
    from torchloom.cli.jobs.submit import send
    from torchloom.client import Endpoint

    if options.replicas is not None:
        from torchloom.cli.jobs.replicas import follow_all, replica_requests, send_all

        jobs = send_all(home, replica_requests(options, body))
        return follow_all(Endpoint.find(home), jobs, home if local else None, shown, quiet=options.json)
    job = send(home, body)
    follower = Follower(
        Endpoint.find(home),
        job,
        home if local else None,
        shown,
        quiet=options.json,
        timestamps=options.timestamps,
    )
    return follower.run()


def let_go(home: Home) -> None:
    """Wait until a stack without holders has ended, so that nothing is left when we return."""
    from torchloom.cli.service import cleanup, parts
    from torchloom.client import Client, Endpoint
    from torchloom.errors import LoomError

    if parts.stays(home) or parts.holders(home):
        return
    supervisor = parts.living(home, "supervisor")
    if supervisor is None:
        from torchloom.cli.service.down import end_stack

        if not cleanup.living_workers(home):
            end_stack(home)
        return
    try:
        if Client(Endpoint.find(home)).jobs(active=True):
            return
    except LoomError:
        pass  # it is ending already
    process = supervisor.hold()
    if process is not None:
        cleanup.wait_dead(process, 4 * cleanup.GRACE_S)
        process.close()
