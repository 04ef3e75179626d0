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
    import secrets
    import shutil
    import time

    from torchloom.bus.cluster_accounts import ClusterKeys
    from torchloom.cli.cluster import authority
    from torchloom.cli.cluster.authority import Authority, write_issued
    from torchloom.cli.cluster.host_files import ClusterHost
    from torchloom.errors import Conflict

    authority.check_available()
    hosts = tuple(_host(one, nats_port, route_port, port) for one in host)
    _check(hosts)
    if directory.exists() and any(directory.iterdir()):
        raise Conflict(f"{directory} is not empty", hint="choose a new directory")
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
    print("Copy to each control host what it needs (LOOM_HOME is ~/.torchloom unless you set it):")
    for one in hosts:
        print(f"  scp -r {directory / one.name} {one.address}:.torchloom/cluster")
    print("Start each of them; the first answers when most of them are up:")
    for one in hosts:
        print(f"  ssh {one.address} loom up")
    print("On one of them, print the command that makes another host a node:")
    print("  loom node token")
    print(f"Keep {directory / 'ca'} in a safe place, and nowhere else: `loom ca renew {directory}` needs it.")


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
    from torchloom.errors import UsageError

    if len(hosts) not in (1, 3, 5):
        raise UsageError(
            f"a cluster has 1, 3 or 5 control hosts, not {len(hosts)}",
            hint="3 survive the loss of one, 5 of two; other hosts join with `loom join`",
        )
    for what in ("name", "address"):
        if len({getattr(one, what) for one in hosts}) < len(hosts):
            raise UsageError(f"two control hosts have the same {what}")


SUBVERBS = {"init": init}
