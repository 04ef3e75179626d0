"""`loom node`: a person's word about one host. `loom nodes` lists them."""

from __future__ import annotations

from typing import Annotated

import typer

from torchloom.cli.options import JsonOption, api

HELP = "Say something about a host that it cannot say itself."
EXAMPLES = (
    ("loom nodes", "which are unreachable"),
    ("loom node drain worker-7 --why 'fan broken'", "no new workers there; what runs goes on"),
    ("loom node open worker-7", "workers may be placed there again"),
    ("loom node gone worker-7", "its host is off or destroyed: replace its workers on other nodes"),
)

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node, as in `loom nodes`.")]


def gone(node: NodeArgument, as_json: JsonOption = False) -> None:
    """Confirm that the host of an unreachable node is really gone.

    Its workers count as dead from then on, and their jobs recover on other nodes. Refused while the node is
    heard. Should it come back, workers that it still runs are ended, so say it only when you know.
    """
    from torchloom.cli import output

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


def drain(node: NodeArgument, why: WhyOption = "", as_json: JsonOption = False) -> None:
    """Place no new workers on a node; what runs there goes on.

    A policy may do the same (`drain`, docs/detection.md).
    """
    from torchloom.cli import output

    view = api().drain_node(node, {"why": why})
    if as_json:
        output.show_json(view)
        return
    here = f"{view['workers']} workers there go on" if view["workers"] else "nothing runs there"
    print(f"{node} is drained; {here}. `loom node open {node}` allows new ones again")


def open_again(node: NodeArgument, as_json: JsonOption = False) -> None:
    """Allow workers on a node that was drained, by a person or by a policy."""
    from torchloom.cli import output

    view = api().open_node(node)
    if as_json:
        output.show_json(view)
        return
    print(f"{node} takes workers again")


SUBVERBS = {"gone": gone, "drain": drain, "open": open_again}
