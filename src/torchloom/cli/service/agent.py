"""`loom agent`: this host's agent. Composes bus and agent; decides nothing."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchloom.cli.cluster.node_files import JoinedNode
from torchloom.errors import LoomError, UsageError
from torchloom.home import Home

if TYPE_CHECKING:
    import asyncio

CONNECT_WITHIN_S = 10.0
ALIVE, ALIVE_EVERY_S = "alive", 5.0


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="loom agent", description="Run this host's agent (production).")
    parser.add_argument("--home", type=Path, help="directory of torchloom's state (LOOM_HOME)")
    parser.add_argument("--nats", metavar="URL", help="NATS servers, by commas; credentials: LOOM_NATS_…")
    parser.add_argument("--node", help="name of this host in the fleet (default: its host name)")
    parser.add_argument(
        "--address", help="address at which other nodes reach this one (default: as it joined, or 127.0.0.1)"
    )
    parser.add_argument(
        "--interface",
        metavar="NAME",
        help="network interface for collectives (LOOM_INTERFACE; default: for gloo, the address's own)",
    )
    parser.add_argument(
        "--slots", type=int, metavar="N", help="workers this host offers room for (LOOM_SLOTS)"
    )
    parser.add_argument(
        "--leave-within",
        type=float,
        metavar="S",
        help="the host ends with this agent (a pod): on SIGTERM, save and move its jobs within S seconds "
        "(LOOM_LEAVE_WITHIN_S)",
    )
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.home is not None:
        os.environ["LOOM_HOME"] = str(options.home.expanduser().absolute())
    if options.nats:
        os.environ["LOOM_NATS_URL"] = options.nats
    if options.slots is not None:
        os.environ["LOOM_SLOTS"] = str(options.slots)
    if options.node:
        os.environ["LOOM_NODE"] = options.node
    joined = JoinedNode.read(Home.default())
    interface = options.interface or (joined.interface if joined is not None else "")
    if interface:
        os.environ["LOOM_INTERFACE"] = interface

    leave_within_s = _leave_within(options.leave_within)

    from torchloom.cli.service.part_main import run_part

    return run_part(
        "agent",
        options.part,
        lambda: _serve(Home.default(), options.address, leave_within_s, supervised=options.part),
    )


async def _stay_alive(home: Home, ready: asyncio.Event) -> None:
    """Touch a file for probes (Kubernetes, compose): this node has joined, and its loop turns."""
    import asyncio

    await ready.wait()
    while True:
        with contextlib.suppress(OSError):
            (home.root / ALIVE).touch()
        await asyncio.sleep(ALIVE_EVERY_S)


def _leave_within(given: float | None) -> float:
    named = os.environ.get("LOOM_LEAVE_WITHIN_S", "")
    try:
        found = given if given is not None else float(named or 0)
    except ValueError:
        raise UsageError(f"LOOM_LEAVE_WITHIN_S is a number of seconds, not {named!r}.") from None
    if not 0 <= found < 86_400:
        raise UsageError(f"--leave-within is between 0 and 86400 s, not {found:g}.")
    return found


async def _serve(home: Home, address: str | None, leave_within_s: float, *, supervised: bool) -> None:
    import asyncio
    import contextlib

    from torchloom.agent.main import serve
    from torchloom.bus.nats import NatsBus
    from torchloom.cli.cluster.fetching import keep_authorities
    from torchloom.cli.service.part_main import unless_stopped
    from torchloom.cli.service.plan import bus_address, node_address, node_name

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    home.prepare()

    async def connect() -> NatsBus:
        await _join_as_pod(home, address or "127.0.0.1")
        node = node_name()
        return await NatsBus.connect(
            bus_address(home, "agent", node), name=f"agent {node}", wait_s=CONNECT_WITHIN_S
        )

    bus = await unless_stopped(asyncio.create_task(connect()), stop)
    if bus is None:
        print("agent: stopped before it had started", file=sys.stderr)
        return
    ready = asyncio.Event()
    side = [asyncio.create_task(_mark(home, ready))] if supervised else []
    side.append(asyncio.create_task(keep_authorities(home), name="authorities"))
    side.append(asyncio.create_task(_stay_alive(home, ready), name="alive"))
    try:
        await serve(
            home,
            node_name(),
            bus,
            address=address or node_address(home),
            stop=stop,
            prewarm=os.environ.get("LOOM_PREWARM") != "0",
            leave_within_s=leave_within_s,
            ready=ready,
        )
    finally:
        for task in side:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*side)
        await bus.close()
    print("agent: ended", file=sys.stderr)


async def _join_as_pod(home: Home, address: str) -> None:
    """A pod joins before anything else; it may start before the control service does."""
    import asyncio

    from torchloom.cli.cluster import pod_join

    wait_s, said = pod_join.AGAIN_S, ""
    while pod_join.must_join(home):
        try:
            joined = await asyncio.to_thread(pod_join.join_as_pod, home, address)
            print(f"agent: admitted as the node {joined.node}", file=sys.stderr)
        except UsageError:
            raise
        except LoomError as error:
            if str(error) != said:
                print(f"agent: cannot join yet: {error}; trying again", file=sys.stderr)
            said = str(error)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, pod_join.AGAIN_AT_MOST_S)


async def _mark(home: Home, ready: asyncio.Event) -> None:
    """Let a supervisor without a weaver know that this node has joined."""
    from torchloom.cli.service import parts

    await ready.wait()
    parts.mark_ready(home, parts.PartRecord.of("agent", os.getpid()))
