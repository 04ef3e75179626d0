"""Follows an operation on a job to its outcome and reports it. Starts no operation itself.

If the control service restarts meanwhile, this waits for it: a request is durable. A user who interrupts
the wait sees that the operation continues.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from torchloom.cli.declared import EndVerb, option
from torchloom.errors import Conflict, Diverged, LoomError

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import DifferenceView, OperationView

WhyOption = Annotated[
    str, option("--why", metavar="TEXT", help="Reason, kept in the history.", show_default=False)
]
WaitOption = Annotated[bool, option("--wait/--no-wait", help="Return when the outcome is known.")]


def _span(given: str | None) -> str | None:
    """Reports a mistake in the duration before any request is sent."""
    from torchloom.durations import parse_span

    if given is not None:
        parse_span(given, "--timeout")
    return given


TimeoutOption = Annotated[
    str | None,
    option(
        "--timeout",
        metavar="SPAN",
        help="Stop waiting after this long: 30s, 10m.",
        show_default=False,
        callback=_span,
    ),
]

LOOK_EVERY_S = 1.0
AGAIN_AFTER_S = 0.3
PATIENCE_S = 120.0
"""How long to wait for an operation that names no step: its phases together are bounded by less."""


def follow(
    client: Client, job: str, operation: str, timeout: str | None, quiet: bool, patient: bool = False
) -> OperationView:
    """The operation once it has ended. Shows its phases on a terminal. `patient`: wait without a limit."""
    from torchloom.cli.show.screen import Screen
    from torchloom.client import NotAnswering, Unavailable
    from torchloom.durations import parse_span
    from torchloom.errors import TimedOut

    limit_s = parse_span(timeout, "--timeout") if timeout is not None else None if patient else PATIENCE_S
    deadline = None if limit_s is None else time.monotonic() + limit_s
    live = not quiet and sys.stderr.isatty()
    screen = Screen(live)
    view: OperationView | None = None
    try:
        while True:
            left_s = LOOK_EVERY_S if deadline is None else deadline - time.monotonic()
            try:
                wait_s = max(0.0, min(LOOK_EVERY_S, left_s)) if view is not None else 0.0
                state = view["state"] if view is not None else None
                view = client.operation(job, operation, wait_s=wait_s, state=state)
                if view["ended"]:
                    return view
                screen.status(f"{job} · {phase(view)}{_distance(client, view) if live else ''}")
            except (NotAnswering, Unavailable) as error:
                screen.status(f"{error.message}; the operation continues")
                time.sleep(AGAIN_AFTER_S)
            if left_s <= 0:
                raise TimedOut(
                    f"No outcome within {limit_s:g} s{f', {phase(view)}' if view else ''}",
                    hint=f"it continues: `loom operations {job} {operation}`",
                )
    except KeyboardInterrupt:
        screen.close()
        print(
            f"loom: it continues; `loom operations {job} --cancel {operation}` cancels it.", file=sys.stderr
        )
        raise
    finally:
        screen.close()


def _distance(client: Client, view: OperationView) -> str:
    """How far away the step is for which an operation waits."""
    from torchloom.cli.show import output

    if view["state"] != "waiting" or view["training_step"] is None:
        return ""
    job = client.summary(view["job"])
    left, rate = max(0, view["training_step"] - job["step"]), job["steps_per_s"]
    if job["paused"]:
        return f"; the job is paused at step {job['step']}"
    return f"; the job has reached step {job['step']}" + (
        f", {output.time_left(left / rate)} left" if rate > 0 else ""
    )


def phase(view: OperationView) -> str:
    """The phase of an operation."""
    step = at(view)
    match view["state"]:
        case "waiting":
            words = f"waiting for {step}" if step else "waiting for earlier operations"
        case "preparing":
            words = "preparing: asking every rank whether it can apply this"
        case "arming":
            words = f"arming for {step}" if step else "arming"
        case "confirmed":
            words = f"armed on all ranks for {step}"
        case ended:
            words = f"{ended} at {step}" if step and ended == "applied" else ended
    return words


def at(view: OperationView) -> str:
    """`step 412`; empty until the operation has a step."""
    step = step_of(view)
    return f"step {step}" if step else ""


def step_of(view: OperationView) -> str:
    """The step in the script's own count if known; empty until the operation has a step."""
    if view["training_step"] is not None:
        return f"{view['training_step']}"
    return f"{view['at_step']} of generation {view['generation']}" if view["at_step"] else ""


def conclude(view: OperationView, headline: str, as_json: bool) -> None:
    """Report the outcome. Raises, or with JSON exits with the same code, if it is not the wanted one."""
    from torchloom.cli.show import output

    error = failure(view)
    if as_json:
        output.show_json(view)
        if error is not None:
            raise EndVerb(error.exit_code)
        return
    if error is not None:
        show_trouble(view)
        raise error
    print(headline)
    show_differences(view["changed"])
    for rank, changed in view["differing"].items():
        print(f"  rank {rank}:")
        show_differences(changed, indent="    ")
    if view["unheard"]:
        ranks = ", ".join(map(str, view["unheard"]))
        print(f"rank {ranks} has not reported; what it does is the same.", file=sys.stderr)


def answer(found: object, text: str, as_json: bool) -> None:
    """Print the response, as JSON or as text."""
    from torchloom.cli.show import output

    if as_json:
        output.show_json(found)
    else:
        print(text)


def failure(view: OperationView) -> LoomError | None:
    if view["state"] == "applied":
        return None
    if view["state"] == "diverged":
        return Diverged(
            f"RANKS DIVERGED: {view['reason']}", hint=f"restore it: `loom checkpoints {view['job']}`"
        )
    return Conflict(f"{what(view)} was not applied: {view['reason'].rstrip('.')}.")


def what(view: OperationView) -> str:
    """The operation in a few words."""
    if view["kind"] == "set":
        return f"the change {assignments(view['values'])}"
    return f"the {view['kind']}"


def show_trouble(view: OperationView) -> None:
    """Tracebacks of the ranks, equal ones once; a rank that only repeats another rank's error is left out."""
    traced = {rank: text for rank, text in view["trouble"].items() if int(rank) in view["raised"]}
    by_text: dict[str, list[str]] = {}
    for rank, text in (traced or view["trouble"]).items():
        by_text.setdefault(text.rstrip(), []).append(rank)
    for text, ranks in by_text.items():
        print(f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranks)}:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in text.splitlines()), file=sys.stderr)


# ---- values ----


def show_differences(changed: list[DifferenceView], indent: str = "  ") -> None:
    rows = grouped(changed)
    width = max((len(place) for place, _ in rows), default=0)
    for place, text in rows:
        print(f"{indent}{place:<{width}}  {text}")


def grouped(changed: list[DifferenceView]) -> list[tuple[str, str]]:
    """Places and what changes there; places of one setting with the same change share a row."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in changed:
        text = f"{value(one['before'])} → {value(one['after'])}"
        if one["before"] == one["after"]:
            text = f"{value(one['after'])} (as before)"
        found.setdefault((setting_of(one["address"]), text), []).append(one["address"])
    return [(places(addresses), text) for (_, text), addresses in found.items()]


def places(addresses: list[str]) -> str:
    if len(addresses) <= 3:
        return ", ".join(addresses)
    return f"{addresses[0]} … {addresses[-1]} ({len(addresses)} places)"


def setting_of(address: str) -> str:
    """`optimizer0.lr@1` is about `lr`."""
    return address.rpartition(".")[2].partition("@")[0]


def value(given: Any) -> str:
    """A value as a user would type it."""
    match given:
        case None:
            return "none"
        case bool():
            return str(given).lower()
        case float():
            return f"{given:.6g}"
        case list() if all(isinstance(part, int | float) for part in given):
            return ",".join(value(part) for part in given)
        case {"own": True} if len(given) == 1:
            return "own"
        case {"scale": factor} if len(given) == 1:
            return f"×{value(factor)}"
        case "":
            return '""'
        case str() | int():
            return str(given)
        case _:
            return json.dumps(given, ensure_ascii=False)


def assignments(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value(given)}" for name, given in values.items())
