"""`loom join`: make this host a node of a cluster, with one command."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import argument, option

if TYPE_CHECKING:
    from torchloom.cli.cluster.node_files import JoinedNode
    from torchloom.home import Home

EXAMPLES = (
    ("loom join 10.0.0.1 --token loomjoin1…", "as `loom node token` prints it; starts the agent"),
    ("loom join 10.0.0.1 --token … --node gpu-7 --slots 8", "under this name, with room for 8 workers"),
    ("loom join 10.0.0.1 --token … --address 192.168.7.7", "other nodes reach this host at that address"),
    ("loom down", "stop the agent; `loom join` without a token starts it again"),
)


def command(
    address: Annotated[
        str,
        argument(metavar="ADDRESS", help="A control host: HOST[:PORT]. Needed once."),
    ] = "",
    token: Annotated[
        str, option("--token", metavar="TOKEN", help="From `loom node token` (or LOOM_JOIN_TOKEN).")
    ] = "",
    node: Annotated[
        str, option("--node", metavar="NAME", help="Name of this host.", show_default="its host name")
    ] = "",
    own: Annotated[
        str,
        option(
            "--address",
            metavar="IP",
            help="Address at which other nodes reach this host.",
            show_default="the one from which it reaches the control host",
        ),
    ] = "",
    interface: Annotated[
        str,
        option(
            "--interface",
            metavar="NAME",
            help="Network interface for collectives (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME).",
            show_default="the one that the address is on",
        ),
    ] = "",
    slots: Annotated[
        int | None,
        option("--slots", min=1, max=4096, help="Workers this host offers room for (LOOM_SLOTS)."),
    ] = None,
) -> None:
    """Make this host a node of a cluster: fetch the authority and a credential of its own, start the agent.

    The host makes its key itself; the control service signs what the key may do, which is to report for this
    node and to read its commands. `loom node revoke` takes that back.
    """
    from torchloom.cli.cluster.hidden_argument import hide_argument
    from torchloom.cli.cluster.node_files import JoinedNode
    from torchloom.cli.service import parts, stack
    from torchloom.errors import Conflict, UsageError
    from torchloom.home import Home

    home = Home.default()
    token = token or os.environ.pop("LOOM_JOIN_TOKEN", "")
    joined = JoinedNode.read(home)
    if stack.is_supervised(home):
        raise Conflict(f"torchloom runs for {home.root} already", hint="use `loom down` first")
    if (home.cluster_dir / "cluster.json").exists():
        raise Conflict(f"{home.root} is a control host of a cluster", hint="use `loom up`")
    if token:
        hide_argument(token)
        joined = _join(home, address, token, node, own, interface)
    elif joined is None:
        raise UsageError("a token is needed to join", hint="`loom node token` on a control host prints one")
    if slots is not None:
        os.environ["LOOM_SLOTS"] = str(slots)
    parts.stay(home)
    stack.start_node(home)
    print(f"{joined.node} is a node of the cluster at {', '.join(joined.apis)}")
    print(f"home   {home.root}")
    print(f"others reach it at {joined.address}")


def _join(home: Home, address: str, token: str, node: str, own: str, interface: str) -> JoinedNode:
    from torchloom.bus.keys import new_seed, public_key
    from torchloom.bus.nats_config import check_node
    from torchloom.cli.cluster import fetching
    from torchloom.cli.cluster.node_files import JoinedNode
    from torchloom.cli.service.plan import node_name
    from torchloom.errors import UsageError

    if not address:
        raise UsageError("the address of a control host is missing", hint="loom join ADDRESS --token …")
    url = fetching.address_of(address)
    name, seed = check_node(node or node_name()), new_seed()
    _check_own(own, interface)
    authority = fetching.pinned_authority(url, token)
    home.prepare()  # before the token is used up
    answer = fetching.ask_to_join(url, token, name, public_key(seed), authority)
    made = JoinedNode(
        name,
        own or fetching.own_address(url),
        tuple(answer["servers"]),
        tuple(answer["addresses"]),
        seed,
        answer["claims"],
        interface,
    )
    made.write(home, answer["ca"])
    return made


def _check_own(address: str, interface: str) -> None:
    """Whether others can reach this host there, as far as it can be seen from here."""
    import ipaddress
    import socket

    from torchloom.errors import UsageError

    try:
        found = ipaddress.ip_address(address or "::1")
    except ValueError:
        raise UsageError(f"--address is an IP address of this host, not {address[:64]!r}") from None
    if found.is_unspecified or found.is_multicast:
        raise UsageError(f"nobody can reach this host at {address}", hint="name one of its addresses")
    known = [name for _, name in socket.if_nameindex()]
    for one in filter(None, interface.split(",")):
        if one not in known:
            raise UsageError(
                f"this host has no interface {one[:64]!r}", hint=f"it has {', '.join(sorted(known))}"
            )
