"""`loom cluster`: make what the control hosts of a cluster need, and say how it gets there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import argument, option

if TYPE_CHECKING:
    from torchloom.cli.cluster.host_files import ControlHost

HELP = "Make a cluster of several control hosts."
EXAMPLES = (
    ("loom cluster init prod --host a=10.0.0.1 --host b=10.0.0.2 --host c=10.0.0.3", "three control hosts"),
    ("loom cluster init small --host a=10.0.0.1", "one control host that other hosts can join"),
)

HostOption = Annotated[
    list[str],
    option("--host", metavar="NAME=ADDRESS", help="A control host and its IP address; 1, 3 or 5."),
]


def init(
    directory: Annotated[Path, argument(metavar="DIR", help="New directory to write to.")],
    host: HostOption,
    port: Annotated[int, option("--port", help="Port of the API on every control host.")] = 8700,
    nats_port: Annotated[int, option("--nats-port", help="Port of NATS for clients.")] = 4222,
    route_port: Annotated[int, option("--route-port", help="Port of NATS between servers.")] = 6222,
    control_only: Annotated[
        bool, option("--control-only", help="Run no workers on the control hosts.")
    ] = False,
) -> None:
    """Write what each control host needs (certificates, keys, addresses), and print the commands.

    Each control host runs a NATS server and a weaver, of which one leads. Keep the directory: it holds the
    certificate authority, and whoever has it controls the cluster.
    """
    import shlex
    import shutil

    from torchloom.cli.cluster import authority
    from torchloom.cli.cluster.host_files import bracketed
    from torchloom.errors import Conflict

    authority.check_available()
    hosts = tuple(_host(one, nats_port, route_port, port) for one in host)
    _check(hosts)
    if directory.exists() and any(directory.iterdir()):
        raise Conflict(f"{directory} is not empty", hint="choose a new directory")
    made = not directory.exists()
    try:
        _write(directory, hosts, control_only)
    except BaseException:  # Ctrl-C and a full disk leave nothing, too
        for name in ("ca", *(one.name for one in hosts)):
            shutil.rmtree(directory / name, ignore_errors=True)
        if made and directory.exists():
            directory.rmdir()
        raise
    print("Copy to each control host what it needs (LOOM_HOME is ~/.torchloom unless you set it):")
    for one in hosts:
        where = shlex.quote(str(directory / one.name))
        print(f"  ssh {one.address} mkdir -p -m 700 .torchloom")
        print(f"  scp -r {where} {bracketed(one.address)}:.torchloom/cluster")
    print("Start each of them; the first answers when most of them are up:")
    for one in hosts:
        print(f"  ssh {one.address} loom up")
    print("On one of them, print the command that makes another host a node:")
    print("  loom node token")
    print(f"Keep {directory / 'ca'} in a safe place, and nowhere else: `loom ca renew {directory}` needs it.")


def _write(directory: Path, hosts: tuple[ControlHost, ...], control_only: bool) -> None:
    import secrets
    import shutil
    import time

    from torchloom.bus.cluster_accounts import ClusterKeys
    from torchloom.cli.cluster.authority import Authority, write_issued
    from torchloom.cli.cluster.host_files import ClusterHost

    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.chmod(0o700)
    signer = Authority(directory / "ca")
    signer.make(f"torchloom {directory.resolve().name}")
    keys, made_s, token = ClusterKeys.new(), int(time.time()), secrets.token_urlsafe(32)
    for one in hosts:
        own = directory / one.name
        own.mkdir(mode=0o700)
        ClusterHost(own, directory.resolve().name, made_s, one.name, hosts, not control_only, keys).write()
        write_issued(own, *signer.issue(one.names))
        shutil.copyfile(signer.bundle_file, own / "ca.pem")
        (own / "token").touch(mode=0o600)
        (own / "token").write_text(token + "\n")


def _host(text: str, nats_port: int, route_port: int, api_port: int) -> ControlHost:
    import ipaddress

    from torchloom.bus.nats_config import check_node
    from torchloom.cli.cluster.host_files import ControlHost
    from torchloom.errors import UsageError
    from torchloom.model.ids import check_token

    name, _, address = text.partition("=")
    try:
        plain = str(ipaddress.ip_address(address))
    except ValueError:
        raise UsageError(
            f"{text!r} names no host", hint="write --host NAME=ADDRESS, with an IP address"
        ) from None
    return ControlHost(
        check_node(check_token(name, "name of a host")), plain, nats_port, route_port, api_port
    )


def _check(hosts: tuple[ControlHost, ...]) -> None:
    import ipaddress

    from torchloom.errors import UsageError

    if len(hosts) not in (1, 3, 5):
        raise UsageError(
            f"a cluster has 1, 3 or 5 control hosts, not {len(hosts)}",
            hint="3 survive the loss of one, 5 of two; other hosts join with `loom join`",
        )
    for what in ("name", "address"):
        if len({getattr(one, what) for one in hosts}) < len(hosts):
            raise UsageError(f"two control hosts have the same {what}")
    addresses = [ipaddress.ip_address(one.address) for one in hosts]
    for one, address in zip(hosts, addresses, strict=True):
        if address.is_unspecified or address.is_multicast:
            raise UsageError(
                f"nobody can reach the control host {one.name} at {one.address}",
                hint="name the address at which other hosts reach it",
            )
        if address.is_loopback and not all(other.is_loopback for other in addresses):
            raise UsageError(
                f"only {one.name} itself can reach {one.address}",
                hint="name the address at which other hosts reach it",
            )
        if one.name == "ca":
            raise UsageError(
                "a control host cannot be named ca", hint="the authority's directory has that name"
            )
    ports = (hosts[0].api_port, hosts[0].nats_port, hosts[0].route_port)
    if len(set(ports)) < len(ports) or not all(1 <= port <= 65535 for port in ports):
        raise UsageError(
            "--port, --nats-port and --route-port are three different numbers from 1 to 65535, not "
            + ", ".join(map(str, ports))
        )


def nats_config(
    secret_file: Annotated[
        Path, option("--secret-file", metavar="FILE", help="The secret that the cluster's keys follow from.")
    ],
    name: Annotated[str, option("--name", help="Name of this server.")],
    server: Annotated[
        list[str], option("--server", metavar="HOST", help="Host name of a server; repeat it for each.")
    ],
    tls: Annotated[Path, option("--tls", metavar="DIR", help="Has tls.crt, tls.key and ca.crt.")],
    store: Annotated[Path, option("--store", metavar="DIR", help="Where the server keeps its data.")],
    out: Annotated[Path, option("--out", metavar="FILE", help="File to write, for its owner alone.")],
    cluster: Annotated[str, option("--cluster", help="Name of the cluster.")] = "torchloom",
) -> None:
    """Write the configuration of one NATS server for control services that share a secret (production).

    The chart's servers start with it. For NATS servers elsewhere, run it with the secret of the release
    (key `keys-secret`) on each of them.
    """
    import os

    from torchloom.cli.cluster import derived
    from torchloom.cli.service.shared_keys import read_secret

    text = derived.nats_config(read_secret(secret_file), cluster, name, server, tls, store)
    descriptor = os.open(out, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)


SUBVERBS = {"init": init, "nats-config": nats_config}
