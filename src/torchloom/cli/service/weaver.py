"""`loom weaver`: one control service with its API, in one event loop. Composes; decides nothing."""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from torchloom.cli.cluster.host_files import ClusterHost
from torchloom.cli.service.plan import DEFAULT_PORT, HOST
from torchloom.errors import UsageError
from torchloom.home import Home

CONNECT_WITHIN_S = 10.0
MOST_WAIT_S = 3600.0


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="loom weaver", description="Run one control service (production).")
    parser.add_argument("--host", default=HOST, help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port of the API (%(default)s)")
    parser.add_argument("--home", type=Path, help="directory of torchloom's state (LOOM_HOME)")
    parser.add_argument("--nats", metavar="URL", help="NATS servers, by commas; credentials: LOOM_NATS_…")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name by which clients may call the API",
    )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate (PEM); with --tls-key")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="key of the certificate")
    parser.add_argument("--insecure", action="store_true", help="allow listening beyond loopback without TLS")
    parser.add_argument(
        "--keep-history",
        type=int,
        metavar="N",
        help="events of the past that are kept at least (LOOM_KEEP_HISTORY; 20000); older ones are dropped "
        "once a verified snapshot stands for them",
    )
    parser.add_argument(
        "--copies",
        type=int,
        metavar="N",
        help="copies of events and objects in a NATS cluster (LOOM_COPIES; 1)",
    )
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.home is not None:
        os.environ["LOOM_HOME"] = str(options.home.expanduser().absolute())
    options.cluster = ClusterHost.read(Home.default())
    if options.cluster is not None:
        _as_in_cluster(options, options.cluster)
    check_exposure(options)
    if options.nats:
        os.environ["LOOM_NATS_URL"] = options.nats
    options.keep_history = kept_history(options.keep_history)
    options.copies = asked_copies(options.copies)

    from torchloom.cli.service.free_core import FreeCore
    from torchloom.cli.service.part_main import run_part

    cores = FreeCore()
    if options.part:
        cores.leave()
    return run_part("weaver", options.part, lambda: _serve(Home.default(), options), cores.use_all)


def _as_in_cluster(options: argparse.Namespace, cluster: ClusterHost) -> None:
    """A control host's own certificate, names and copies, unless others were asked for."""
    if not options.tls_cert:
        options.tls_cert, options.tls_key = cluster.certificate, cluster.key
    options.allow_host += sorted(cluster.names)
    if options.copies is None and not os.environ.get("LOOM_COPIES"):
        options.copies = cluster.copies


def kept_history(asked: int | None) -> int:
    """How many events are kept: as asked for, else as the environment says."""
    from torchloom.core.history.trimming import KEEP_HISTORY, LEAST_KEPT

    named = os.environ.get("LOOM_KEEP_HISTORY", "")
    if asked is None and named and not named.isdecimal():
        raise UsageError(f"LOOM_KEEP_HISTORY is a number of events, not {named!r}.")
    number = asked if asked is not None else int(named or KEEP_HISTORY)
    if number < LEAST_KEPT:
        raise UsageError(f"--keep-history is at least {LEAST_KEPT} events, {number} were asked for.")
    return number


def connect_within_s() -> float:
    """How long to wait for the bus at the start; where others start it, that may take minutes."""
    named = os.environ.get("LOOM_NATS_WAIT_S", "")
    try:
        seconds = float(named or CONNECT_WITHIN_S)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= MOST_WAIT_S:
        raise UsageError(
            f"LOOM_NATS_WAIT_S is a number of seconds, above 0 and at most {MOST_WAIT_S:g}, not {named!r}."
        )
    return seconds


def asked_copies(asked: int | None) -> int:
    """How many copies the bus keeps: as asked for, else as the environment says."""
    named = os.environ.get("LOOM_COPIES", "") or "1"
    number = asked if asked is not None else int(named) if named.isdecimal() else 0
    if number not in (1, 3, 5):
        raise UsageError(
            f"--copies is 1, 3 or 5, not {asked if asked is not None else named!r}",
            hint="3 copies survive the loss of one server, 5 of two",
        )
    return number


def check_exposure(options: argparse.Namespace) -> None:
    """A token must not cross a network in the clear unless the user asks for it explicitly."""
    if bool(options.tls_cert) != bool(options.tls_key):
        raise UsageError("--tls-cert and --tls-key belong together.")
    for path in (options.tls_cert, options.tls_key):
        if path is not None and not path.is_file():
            raise UsageError(f"{path} is not a file.")
    if not (is_loopback(options.host) or options.tls_cert or options.insecure):
        raise UsageError(
            f"{options.host} is reachable from other machines and there is no TLS",
            hint="give --tls-cert and --tls-key, or --insecure behind a proxy that terminates TLS",
        )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(options: argparse.Namespace) -> frozenset[str]:
    """Host names by which clients may call: the allowed ones, and the address itself if it is one."""
    own = [] if options.host in ("", "0.0.0.0", "::") else [options.host]
    return frozenset(name.lower() for name in [*options.allow_host, *own])


async def _serve(home: Home, options: argparse.Namespace) -> None:
    import asyncio

    from torchloom.bus.nats import NatsBus
    from torchloom.cli.service.launch import open_port
    from torchloom.cli.service.part_main import unless_stopped
    from torchloom.cli.service.plan import bus_address, make_token, node_name

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    home.prepare()
    token = os.environ.get("LOOM_TOKEN") or make_token(home)
    if options.fd is not None:
        listener = socket.socket(fileno=options.fd)
    else:
        listener = open_port(options.port, any_port=False, host=options.host)
    name = f"{node_name()}-{os.getpid()}"
    connecting = asyncio.create_task(
        NatsBus.connect(
            bus_address(home, "weaver", node_name()),
            name=f"weaver {name}",
            wait_s=connect_within_s(),
            copies=options.copies,
        )
    )
    await asyncio.sleep(0)  # let the connection begin: the imports below take longer than it does
    from torchloom.api.defaults import Defaults
    from torchloom.api.tokens import Tokens
    from torchloom.cli.jobs.policy import of_home
    from torchloom.cli.service.serving import serve_api

    bus = await unless_stopped(connecting, stop)
    if bus is None:
        print("weaver: stopped before it had started", file=sys.stderr)
        return
    try:
        from torchloom.cli.cluster.derived import DerivedCluster
        from torchloom.cli.cluster.issuer import ClusterIssuer
        from torchloom.cli.places.pod_review import PodReview
        from torchloom.cli.service.shared_keys import keys_of
        from torchloom.weaver.job_keys import DerivedKeys
        from torchloom.weaver.service import Weaver

        cluster, derived = options.cluster, DerivedCluster.of()
        signing = cluster or derived
        weaver = Weaver(
            bus,
            name,
            keys_of(home) if cluster is None else DerivedKeys(cluster.environment_key),
            keep_history=options.keep_history,
            issuer=None if signing is None else ClusterIssuer(signing),
            reviewer=PodReview.of(os.environ),
            server="" if cluster is None else cluster.this,
            patient=options.copies > 1,
        )
        api = asyncio.create_task(
            serve_api(
                weaver,
                Tokens(token, home.tokens_file, weaver.admission.pod_of),
                listener,
                names_of(options),
                stop,
                defaults=Defaults.read(os.environ, policy=lambda: of_home(home.root)),
                certificate=options.tls_cert,
                key=options.tls_key,
            ),
            name="api",
        )
        control = asyncio.create_task(weaver.run(stop), name="weaver")
        await asyncio.wait({api, control}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await asyncio.wait({api, control})
        for task in (control, api):
            task.result()
    finally:
        await bus.close()
    print("weaver: ended", file=sys.stderr)
