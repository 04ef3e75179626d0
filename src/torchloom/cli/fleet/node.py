"""`loom node`: drain a host, reopen it, confirm that it is gone, admit or revoke it. `loom nodes` lists
hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import argument, option
from torchloom.cli.fleet.emptying import name_those_that_stay, wait_empty
from torchloom.cli.options import JsonOption, api
from torchloom.errors import UsageError

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import LeavingView, NodeView

HELP = "Drain a host, reopen it, confirm that it is gone, admit or revoke it."
EXAMPLES = (
    ("loom nodes", "list nodes; shows which are unreachable"),
    ("loom node drain worker-7 --why 'fan broken'", "save the jobs there, move them, and place nothing new"),
    ("loom node drain worker-7 --keep", "place nothing new; jobs there continue"),
    ("loom node open worker-7", "workers may be placed there again"),
    ("loom node token --hosts 4 --for 30m", "print the command that makes up to 4 hosts nodes"),
    ("loom node revoke worker-7", "take back the credential of a host that joined"),
    ("loom node gone worker-7", "its host is off or destroyed: replace its workers on other nodes"),
)

NodeArgument = Annotated[str, argument(metavar="NODE", help="Name of the node, as in `loom nodes`.")]


def gone(node: NodeArgument, as_json: JsonOption = False) -> None:
    """Confirm that the host of an unreachable node is gone for good.

    From then on its workers count as dead, and their jobs recover on other nodes. Refused while the node is
    reachable. If the node comes back, torchloom kills the workers that still run there: confirm only what
    you know.
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


WhyOption = Annotated[str, option("--why", metavar="TEXT", help="Reason, shown in `loom nodes`.")]


KeepOption = Annotated[bool, option("--keep", help="Let running jobs stay on the node.")]
ForceOption = Annotated[bool, option("--force", help="Also move jobs that cannot save first.")]
WaitOption = Annotated[bool, option("--wait/--no-wait", help="Return once the node is empty.")]


def drain(
    node: NodeArgument,
    why: WhyOption = "",
    keep: KeepOption = False,
    force: ForceOption = False,
    wait: WaitOption = True,
    as_json: JsonOption = False,
) -> None:
    """Move the jobs off a node, and place no new workers there.

    Each job saves, stops at a step boundary and resumes elsewhere; this does not count as a restart. A job
    that cannot save, or for which no other node has room, stays and keeps training: the output names it and
    the exit code is 5.
    A policy may drain a node too (docs/detection.md).
    """
    from torchloom.cli.show import output

    if keep and force:
        raise UsageError("--keep moves no job, so --force has no effect: use one of the two.")
    client = api()
    view = client.drain_node(node, {"why": why, "keep": keep, "force": force})
    if wait and not keep:
        view = _wait_empty(client, node, quiet=as_json)
    if as_json:
        output.show_json(view)
    elif keep or not view["workers"]:
        here = f"{view['workers']} workers there continue" if view["workers"] else "nothing runs there"
        print(f"{node} is drained; {here}. `loom node open {node}` reopens it")
    elif not wait:
        for one in view["leaving"]:
            print(f"{one['job']} {'stays' if one['stays'] else 'leaves'}: {one['note']}")
    name_those_that_stay(node, view["leaving"])


def _wait_empty(client: Client, node: str, quiet: bool) -> NodeView:
    """Wait until every job has left the node or has turned out unable to leave."""

    def look() -> tuple[NodeView, list[LeavingView], bool]:
        view = next(one for one in client.nodes() if one["id"] == node)
        return view, view["leaving"], all(one["stays"] for one in view["leaving"])

    return wait_empty(node, look, "loom nodes", quiet)


def open_again(node: NodeArgument, as_json: JsonOption = False) -> None:
    """Reopen a drained node for workers, whether a person or a policy drained it."""
    from torchloom.cli.show import output

    view = api().open_node(node)
    if as_json:
        output.show_json(view)
        return
    print(f"{node} takes workers again")


def token(
    hosts: Annotated[int, option("--hosts", metavar="N", help="How many hosts it admits.")] = 1,
    valid: Annotated[
        str, option("--for", metavar="TIME", help="How long it is valid: 90s, 30m, 12h, 7d at most.")
    ] = "1h",
    name: Annotated[
        str,
        option("--node", metavar="NAME", help="Admit only a host of this name.", show_default="any"),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Make a token with which hosts join this cluster, and print the command to run there.

    The token is shown once. It names the cluster's certificate authority, so that a host sends it to nobody
    else.
    """
    from torchloom.cli.show import output

    made = api().make_join_token({"hosts": hosts, "valid_s": seconds(valid), "node": name})
    if as_json:
        output.show_json(made)
        return
    print(f"loom join {made['addresses'][0]} --token {made['token']}")


def seconds(text: str) -> float:
    """`90s`, `30m`, `12h`, `7d`, in seconds."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number, unit = text[:-1], text[-1:]
    if unit not in units or not number.isdecimal() or len(number) > 6 or not int(number):
        raise UsageError(f"{text!r} is no length of time", hint="write 90s, 30m, 12h or 7d")
    return float(int(number) * units[unit])


def revoke(node: NodeArgument, as_json: JsonOption = False) -> None:
    """Take back the credential of a host that joined with `loom join`.

    Its connections to the message bus end at once, and it gets no new one. Workers that run there are not
    touched: the node becomes unreachable, and `loom node gone` replaces them. To be a node again, the host
    needs a new token.
    """
    from torchloom.cli.show import output

    api().revoke_node(node)
    if as_json:
        output.show_line({"node": node, "revoked": True})
    else:
        print(f"{node} is revoked: the message bus has ended its connections and refuses new ones")


SUBVERBS = {"gone": gone, "drain": drain, "open": open_again, "token": token, "revoke": revoke}
