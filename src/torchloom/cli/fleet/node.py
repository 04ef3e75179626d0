"""`loom node`: a person's word about one host. `loom nodes` lists them."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from torchloom.cli.options import JsonOption, api
from torchloom.errors import UsageError

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import NodeView

HELP = "Tell torchloom about a host: drain, open, gone."
EXAMPLES = (
    ("loom nodes", "which are unreachable"),
    ("loom node drain worker-7 --why 'fan broken'", "save and move what runs there, and place nothing new"),
    ("loom node drain worker-7 --keep", "place nothing new; jobs there continue"),
    ("loom node open worker-7", "workers may be placed there again"),
    ("loom node gone worker-7", "its host is off or destroyed: replace its workers on other nodes"),
)

EMPTY_WITHIN_S = 1800.0
"""A large state takes its time to be written."""
LOOK_EVERY_S = 0.2

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node, as in `loom nodes`.")]


def gone(node: NodeArgument, as_json: JsonOption = False) -> None:
    """Confirm that the host of an unreachable node is really gone.

    Its workers count as dead from then on, and their jobs recover on other nodes. Refused while the node is
    heard. Should it come back, workers that it still runs are ended, so say it only when you know.
    """
    from torchloom.cli.show import output

    client = api()
    before = {job["id"]: job for job in client.jobs(active=True)}
    view = client.node_gone(node)
    if as_json:
        output.show_json(view)
        return
    print(f"{node} is {view['state']}: {view['reason']}")
    for job in client.jobs(active=True):
        if job["id"] in before and job["reason"] != before[job["id"]]["reason"]:
            print(f"{job['id']} {job['state']}: {job['reason']}")


WhyOption = Annotated[str, typer.Option("--why", metavar="TEXT", help="Shown with the node.")]


KeepOption = Annotated[bool, typer.Option("--keep", help="Leave the jobs that run there alone.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Move also what cannot be saved before.")]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Return when the node is empty.")]


def drain(
    node: NodeArgument,
    why: WhyOption = "",
    keep: KeepOption = False,
    force: ForceOption = False,
    wait: WaitOption = True,
    as_json: JsonOption = False,
) -> None:
    """Take the jobs off a node, and place no new workers there.

    Each job is saved, ended at a step boundary and begun again elsewhere; that costs none of its restarts.
    One that has no room elsewhere or cannot be saved stays and trains on: it is named, the exit status is 5.
    A policy may drain a node too (docs/detection.md).
    """
    from torchloom.cli.show import output
    from torchloom.errors import Conflict

    if keep and force:
        raise UsageError("--keep moves nothing, so there is nothing to force.")
    client = api()
    view = client.drain_node(node, {"why": why, "keep": keep, "force": force})
    if wait and not keep:
        view = _wait_empty(client, node, quiet=as_json)
    if as_json:
        output.show_json(view)
    elif keep or not view["workers"]:
        here = f"{view['workers']} workers there continue" if view["workers"] else "nothing runs there"
        print(f"{node} is drained; {here}. `loom node open {node}` allows new ones again")
    elif not wait:
        for one in view["leaving"]:
            print(f"{one['job']} {'stays' if one['stays'] else 'leaves'}: {one['note']}")
    stay = [one for one in view["leaving"] if one["stays"]]
    if stay:
        told = "; ".join(f"{one['job']} stays there: {one['note']}" for one in stay)
        raise Conflict(f"{node} takes no new workers, but {told}.")


def _wait_empty(client: Client, node: str, quiet: bool) -> NodeView:
    """Until every job has left, or cannot."""
    from torchloom.cli.show.screen import Screen
    from torchloom.errors import TimedOut

    deadline = time.monotonic() + EMPTY_WITHIN_S
    screen = Screen(live=not quiet and sys.stderr.isatty())
    try:
        while time.monotonic() < deadline:
            view = next(one for one in client.nodes() if one["id"] == node)
            going = [one for one in view["leaving"] if not one["stays"]]
            if not going:
                return view
            screen.status(f"{node} · " + "; ".join(f"{one['job']}: {one['note']}" for one in going))
            time.sleep(LOOK_EVERY_S)
    finally:
        screen.close()
    raise TimedOut(f"{node} is not empty yet", hint="see `loom nodes`; it continues by itself")


def open_again(node: NodeArgument, as_json: JsonOption = False) -> None:
    """Allow workers on a node that was drained, by a person or by a policy."""
    from torchloom.cli.show import output

    view = api().open_node(node)
    if as_json:
        output.show_json(view)
        return
    print(f"{node} takes workers again")


SUBVERBS = {"gone": gone, "drain": drain, "open": open_again}
