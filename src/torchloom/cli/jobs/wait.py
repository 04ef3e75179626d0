"""`loom wait`: return once jobs have reached a state or step, or report that they never will."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from torchloom.cli.declared import option
from torchloom.cli.options import JobsArgument, JsonOption, api

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import JobDetail

EXAMPLES = (
    ("loom wait train-3f9a", "exit code 0 if it completes, 1 if it ends otherwise"),
    ("loom wait train-3f9a --for running --timeout 2m", "exit code 6 if it takes longer"),
    ("loom wait a b --for step=1000", "until both have reached it"),
)

AGAIN_AFTER_S = 0.5
NAMED = ("completed", "failed", "stopped", "running", "ended", "deleted")
"""Points with a name; the others are `state=NAME` and `step=N`."""


@dataclass(frozen=True)
class Point:
    """A state or step that a job may reach."""

    kind: Literal["state", "ended", "deleted", "step"]
    state: str = ""
    step: int = 0

    @classmethod
    def parse(cls, text: str) -> Point:
        from torchloom.errors import UsageError

        name, given, value = text.partition("=")
        if given and name == "step" and value.isdecimal():
            return cls("step", step=int(value))
        if given and name == "state" and value:
            return cls("state", state=value)
        if not given and name in ("ended", "deleted"):
            return cls("ended" if name == "ended" else "deleted")
        if not given and name in NAMED:
            return cls("state", state=name)
        raise UsageError(f"--for {text!r} is unknown", hint=f"use {', '.join(NAMED)}, state=NAME or step=N")

    def reached(self, view: JobDetail) -> bool:
        match self.kind:
            case "state":
                return view["state"] == self.state
            case "ended":
                return view["ended"]
            case "step":
                return view["step"] >= self.step
            case "deleted":
                return False

    def impossible(self, view: JobDetail) -> bool:
        """Whether the job can no longer reach the point."""
        return view["ended"] and self.kind in ("state", "step") and not self.reached(view)

    def __str__(self) -> str:
        return f"step {self.step}" if self.kind == "step" else self.state or self.kind


def command(
    jobs: JobsArgument,
    point: Annotated[
        str,
        option("--for", metavar="POINT", help=f"{', '.join(NAMED)}, state=NAME or step=N."),
    ] = "completed",
    timeout: Annotated[
        str | None, option("--timeout", metavar="SPAN", help="Give up after: 30s, 10m, 2h.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until jobs have completed, or have reached another state or step."""
    from torchloom.cli.show import output
    from torchloom.durations import parse_span

    wanted = Point.parse(point)
    deadline = None if timeout is None else time.monotonic() + parse_span(timeout, "--timeout")
    client = api()
    for job in dict.fromkeys(jobs):
        view = wait_for(client, job, wanted, deadline)
        if as_json:
            output.show_line(view if view is not None else {"id": job, "deleted": True})
        elif view is None:
            print(f"{job} is deleted")
        else:
            print(f"{job} {view['state']}, step {output.steps(view)}: {view['reason']}")


def wait_for(client: Client, job: str, point: Point, deadline: float | None) -> JobDetail | None:
    """The job once it has reached the point; None if the point is its deletion. Raises if it cannot."""
    from torchloom.client import NotAnswering, Unavailable
    from torchloom.errors import JobFailed, NotFound, TimedOut

    view: JobDetail | None = None
    while True:
        left_s = None if deadline is None else deadline - time.monotonic()
        try:
            after = view["seq"] if view is not None else None
            # Steps arrive by telemetry and raise no fleet event, so they need polling.
            longest_s = AGAIN_AFTER_S if point.kind == "step" else 5.0
            wait_s = max(0.0, longest_s if left_s is None else min(longest_s, left_s))
            view = client.job(job, after=after, wait_s=wait_s if after is not None else None)
        except NotFound:
            if point.kind == "deleted":
                return None
            raise
        except (NotAnswering, Unavailable):
            # A control service may restart at any time; one that never answered is an error.
            if view is None:
                raise
            time.sleep(AGAIN_AFTER_S)
        else:
            if point.reached(view):
                return view
            if point.impossible(view):
                raise JobFailed(f"{job} {view['state']} and will not be {_in_words(point)}: {view['reason']}")
        if left_s is not None and left_s <= 0:
            raise TimedOut(
                f"{job} is {view['state']} at step {view['step']} and was not {_in_words(point)} in time"
            )


def _in_words(point: Point) -> str:
    return f"at {point}" if point.kind == "step" else str(point)
