"""`loom up`: start everything this host needs, and adopt parts that still run."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

from torchloom.cli.declared import EndVerb, option

EXAMPLES = (
    ("loom up", "on 127.0.0.1:8700"),
    ("loom up --port 0 --home ~/second", "a second instance, on any free port"),
    ("loom up --systemd > ~/.config/systemd/user/torchloom.service", "a unit for systemd"),
    ("loom up --nats nats://bus:4222", "with an existing NATS server"),
    ("loom up --nats tls://a:4222,tls://b:4222,tls://c:4222 --copies 3", "with a NATS cluster"),
)


def command(
    port: Annotated[
        int | None, option("--port", help="Port of the API; 0 for any free one.", show_default="8700")
    ] = None,
    nats: Annotated[
        str,
        option(
            "--nats",
            metavar="URL",
            help="Use these NATS servers (by commas) instead of an embedded one. Credentials: LOOM_NATS_USER "
            "and LOOM_NATS_PASSWORD, or LOOM_NATS_SEED_FILE; TLS: LOOM_NATS_CA, _CERT and _KEY.",
        ),
    ] = "",
    copies: Annotated[
        int | None,
        option(
            "--copies",
            metavar="N",
            help="Copies of events and objects in a NATS cluster: 1, 3 or 5.",
            show_default="1, or LOOM_COPIES",
        ),
    ] = None,
    keep_history: Annotated[
        int | None,
        option(
            "--keep-history",
            metavar="N",
            help="Events of the past that are kept at least; older ones are dropped once a verified snapshot "
            "stands for them.",
            show_default="20000, or LOOM_KEEP_HISTORY",
        ),
    ] = None,
    slots: Annotated[
        int | None,
        option(
            "--slots",
            min=1,
            max=4096,
            help="Workers this host offers room for (LOOM_SLOTS): one per GPU, or 8 per core without GPUs.",
        ),
    ] = None,
    foreground: Annotated[
        bool, option("--foreground", help="Run in the foreground and log to the terminal.")
    ] = False,
    systemd: Annotated[
        bool, option("--systemd", help="Print a systemd unit that does this, and do nothing.")
    ] = False,
) -> None:
    """Start message bus, weaver and agent on this host. Restarts a part that dies; adopts running ones."""
    from torchloom.cli.access.open import page_line
    from torchloom.cli.cluster.host_files import ClusterHost
    from torchloom.cli.cluster.node_files import JoinedNode
    from torchloom.cli.service import parts, stack
    from torchloom.cli.service.plan import DEFAULT_PORT, Plan
    from torchloom.cli.service.weaver import asked_copies, kept_history
    from torchloom.errors import Conflict, LoomError
    from torchloom.home import Home

    began = time.monotonic()
    where = Home.default()
    if systemd:
        from torchloom.cli.service.launch import check_port
        from torchloom.cli.service.systemd import unit

        if port is not None:
            check_port(port)
        asked_copies(copies)
        kept_history(keep_history)
        flags = {"port": port, "nats": nats or None, "copies": copies, "slots": slots}
        print(unit(where.root, flags | {"keep-history": keep_history}), end="")
        return
    kept = kept_history(keep_history)
    if JoinedNode.read(where) is not None:
        raise Conflict(f"{where.root} is a node of a cluster", hint="`loom join` starts its agent")
    cluster = ClusterHost.read(where)
    if copies is not None or os.environ.get("LOOM_COPIES") or cluster is None:
        os.environ["LOOM_COPIES"] = str(asked_copies(copies))
    where.prepare()
    os.environ["LOOM_KEEP_HISTORY"] = str(kept)
    if nats:
        os.environ["LOOM_NATS_URL"] = nats
    if slots is not None:
        os.environ["LOOM_SLOTS"] = str(slots)
    parts.stay(where)
    # A plan is left over only by a crash: whoever knows the old address finds the new stack there, too.
    left = Plan.read(where) if port is None else None
    usual = cluster.host.api_port if cluster is not None else DEFAULT_PORT
    wanted = port if port is not None else left.port if left is not None else usual
    if foreground:
        _foreground(where.root, wanted)
    start = stack.Start(where, wanted, any_port=False).begin()
    from torchloom.cli.doctor import brief  # while the parts start, looking costs no time

    looked = brief.look(where)
    try:
        endpoint = start.wait()
    except LoomError:
        if not stack.is_supervised(where):
            parts.end_stay(where)
        raise
    if not start.ours:
        print(f"torchloom is already up at {endpoint.url} (`loom open` for the page)")
        if port not in (None, 0) and not endpoint.url.endswith(f":{port}"):
            print("loom: --port has no effect while torchloom is up; use `loom down` first.", file=sys.stderr)
        if slots is not None:
            print(
                "loom: --slots has no effect while torchloom is up; use `loom down` first.", file=sys.stderr
            )
        return
    print(f"torchloom is up at {endpoint.url} (in {time.monotonic() - began:.1f} s)")
    if not start.ready:
        print(f"home   {where.root}")
        print("waits  until most control hosts of the cluster are up: start the others")
        return
    print(f"home   {where.root}")
    print(f"page   {page_line(endpoint)}")
    print("\n".join(brief.lines(looked)))
    print("next   loom run train.py · loom ps · loom doctor · loom down")


def _foreground(root: Path, port: int) -> None:
    from torchloom.cli.service import parts
    from torchloom.cli.service.supervisor import ALREADY, supervise
    from torchloom.errors import Conflict
    from torchloom.home import Home

    status = supervise(Home(root), port, any_port=False)
    if status == ALREADY:
        raise Conflict(f"torchloom is already up for {root}", hint="use `loom down` first")
    parts.end_stay(Home(root))  # it would have lived only as long as this process
    failure = parts.take_failure(Home(root), "supervisor")
    if failure is not None:
        print(f"loom: {failure[0]}", file=sys.stderr)
    raise EndVerb(status)
