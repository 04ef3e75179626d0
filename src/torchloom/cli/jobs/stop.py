"""`loom stop`: stop a job at a step boundary, or at once, and wait until it has ended."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal, cast, get_args

from torchloom.cli.declared import option
from torchloom.cli.options import JobsArgument, JsonOption, api

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import JobDetail, StopRequest

EXAMPLES = (
    ("loom stop train-3f9a", "stop at the next step boundary, and wait"),
    ("loom stop train-3f9a --grace 5", "SIGKILL workers that still run 5 s after SIGTERM"),
    (
        "loom stop train-3f9a --signal USR1 --grace 60",
        "the script's own handler of SIGUSR1 saves and ends it",
    ),
    ("loom stop train-3f9a --kill", "at once"),
)

STOP_WITHIN_S = 300.0
Signal = Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]


def command(
    jobs: JobsArgument,
    kill: Annotated[
        bool, option("--kill", help="SIGKILL at once, without waiting for a step boundary.")
    ] = False,
    grace: Annotated[
        float | None, option("--grace", help="Seconds between SIGTERM and SIGKILL.", metavar="S")
    ] = None,
    signal: Annotated[
        str | None,
        option(
            "--signal",
            metavar="NAME",
            help="Signal for the script, in place of SIGTERM: TERM, INT, HUP, QUIT, USR1 or USR2.",
        ),
    ] = None,
    wait: Annotated[bool, option("--wait/--no-wait", help="Return once the job has ended.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Stop jobs at their next step boundary and wait until they have ended.

    A script that handles the signal gets it there and ends in its own way. Others end at the boundary.
    """
    from torchloom.cli.jobs.replicas import members
    from torchloom.cli.show import output
    from torchloom.errors import UsageError

    if signal is not None and kill:
        raise UsageError("Only one of --kill and --signal at a time.")
    named = None if signal is None else _signal(signal)
    client = api()
    had_ended = {job: client.job(job)["ended"] for job in members(client, dict.fromkeys(jobs))}
    for job, ended in had_ended.items():
        if not ended:
            wanted: StopRequest = {"kill": kill, "grace_s": grace}
            client.stop(job, wanted if named is None else {**wanted, "signal": named})
    for job, ended in had_ended.items():
        view = wait_ended(client, job, quiet=as_json) if wait else client.job(job)
        if as_json:
            output.show_line(view)
        elif ended:
            print(f"{job} had already ended: {view['state']}")
        else:
            print(f"{job} {view['state']}: {view['reason']}")


def _signal(given: str) -> Signal:
    """The name that the service knows."""
    from torchloom.errors import UsageError

    wanted = given.upper().removeprefix("SIG")
    for name in get_args(Signal):
        if name == f"SIG{wanted}":
            return cast("Signal", name)
    known = ", ".join(name.removeprefix("SIG") for name in get_args(Signal))
    hint = "use --kill" if wanted in ("KILL", "9") else f"use one of {known}"
    raise UsageError(f"A job cannot be stopped with the signal {given}", hint=hint)


def wait_ended(client: Client, job: str, quiet: bool) -> JobDetail:
    """The job once it has ended. Shows progress on a terminal."""
    from torchloom.cli.show.screen import Screen
    from torchloom.errors import TimedOut

    deadline = time.monotonic() + STOP_WITHIN_S
    screen = Screen(live=not quiet and sys.stderr.isatty())
    after = -1
    try:
        while time.monotonic() < deadline:
            view = client.job(job, after=after, wait_s=1.0)
            if view["ended"]:
                return view
            after = view["seq"]
            screen.status(
                f"{job} {view['state']} · {view['running_workers']} workers left · {view['reason']}"
            )
    finally:
        screen.close()
    raise TimedOut(f"{job} has not ended within {STOP_WITHIN_S:g} s", hint=f"use `loom stop --kill {job}`")
