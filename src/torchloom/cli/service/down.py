"""`loom down`: stop everything this host runs for a home, and leave nothing behind."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import option

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.home import Home

EXAMPLES = (
    ("loom down", "stop everything; refuses while a job runs"),
    ("loom down --stop-jobs", "stop running jobs first"),
    ("loom down --keep-jobs", "leave workers running; the next `loom up` adopts them"),
)

NODES_AWAY_FOR_S = 10.0
"""How long to wait for an unreachable node that is needed to end a job."""
LOOK_EVERY_S = 0.1
MOST_NAMED = 6


def command(
    stop_jobs: Annotated[bool, option("--stop-jobs", help="Stop running jobs first.")] = False,
    keep_jobs: Annotated[
        bool, option("--keep-jobs", help="Leave workers running; the next `loom up` adopts them.")
    ] = False,
) -> None:
    """Stop everything on this host. If jobs are running, choose --stop-jobs or --keep-jobs."""
    from torchloom import one_host
    from torchloom.cli.service import parts
    from torchloom.errors import UsageError
    from torchloom.home import Home

    if stop_jobs and keep_jobs:
        raise UsageError("--stop-jobs and --keep-jobs exclude each other.")
    where = Home.default()
    one_host.refuse_elsewhere(where)
    found = any(parts.living(where, name) for name in ("supervisor", *parts.PARTS))
    if not keep_jobs:
        settle_jobs(where, stop_jobs, found)
    end_stack(where)
    print("torchloom is down" if found else f"nothing was running for {where.root}")
    if keep_jobs and found:
        print("workers continue; the next `loom up` adopts them")


def settle_jobs(home: Home, stop_jobs: bool, found: bool) -> None:
    """Refuse while jobs run, or stop them."""
    from torchloom.cli.cluster.node_files import JoinedNode
    from torchloom.cli.service import stack
    from torchloom.cli.service.cleanup import living_workers
    from torchloom.client import Client
    from torchloom.errors import Conflict

    workers = living_workers(home)
    if JoinedNode.read(home) is not None:
        if workers:
            raise Conflict(
                f"Still running here: {', '.join(workers[:4])}",
                hint="move them with `loom node drain`, or add --keep-jobs",
            )
        return
    endpoint = stack.running(home) if found and "LOOM_ADDRESS" not in os.environ else None
    if endpoint is None and workers and stop_jobs:
        # Parts are missing, and only a complete stack can stop a job cleanly.
        endpoint = stack.Start(home).begin().wait()
    if endpoint is None and not workers:
        return
    api = Client(endpoint) if endpoint is not None else None
    jobs = [job["id"] for job in api.jobs(active=True)] if api is not None else []
    if not jobs and not workers:
        return
    if not stop_jobs:
        names = ", ".join(jobs) or ", ".join(workers[:4])
        raise Conflict(f"Still running: {names}", hint="add --stop-jobs or --keep-jobs")
    assert api is not None
    for job in jobs:
        api.stop(job)
    wait_stopped(api, set(jobs))


def wait_stopped(api: Client, jobs: set[str]) -> None:
    """Wait until all jobs have ended, except those that cannot end because their nodes are gone."""
    from torchloom.cli.jobs.stop import STOP_WITHIN_S
    from torchloom.errors import TimedOut

    began = time.monotonic()
    while jobs := jobs & {job["id"] for job in api.jobs(active=True)}:
        waited_s = time.monotonic() - began
        if waited_s > NODES_AWAY_FOR_S:
            names = ", ".join(sorted(jobs)[:MOST_NAMED]) + (" …" if len(jobs) > MOST_NAMED else "")
            if not can_end(api, jobs):
                print(f"loom: cannot stop jobs whose nodes are unreachable: {names}", file=sys.stderr)
                return
            if waited_s > STOP_WITHIN_S:
                raise TimedOut(
                    f"Not ended within {STOP_WITHIN_S:g} s: {names}",
                    hint="use `loom stop --kill`, or `loom down --keep-jobs`",
                )
        time.sleep(LOOK_EVERY_S)


def can_end(api: Client, jobs: set[str]) -> bool:
    """Whether any of the jobs has a worker on a reachable node."""
    ready = {node["id"] for node in api.nodes() if node["state"] == "ready"}
    return any(worker["node"] in ready for job in sorted(jobs) for worker in api.job(job)["workers"])


def end_stack(home: Home) -> None:
    """End the supervisor, which ends its parts; then end whatever is left, even without a supervisor."""
    from torchloom import one_host
    from torchloom.cli.service import cleanup, parts
    from torchloom.errors import Conflict

    if not home.parts_dir.is_dir():
        return
    parts.end_stay(home)
    supervisor = parts.living(home, "supervisor")
    if supervisor is not None:
        # The supervisor ends three parts, each with its own grace period.
        cleanup.end_process(supervisor, grace_s=4 * cleanup.GRACE_S)
    lock = one_host.take_lock(home, wait_s=2.0)
    if lock is None:
        raise Conflict("Another `loom up` or `loom down` is running here", hint="try again in a moment")
    try:
        cleanup.end_parts(home)
        one_host.release(home)
        parts.forget(home, "supervisor")
    finally:
        os.close(lock)
