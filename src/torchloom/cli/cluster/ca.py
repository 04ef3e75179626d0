"""`loom ca`: certificates of a cluster, made, renewed and rotated without a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from torchloom.cli.declared import argument, option

HELP = "Make and renew certificates."
EXAMPLES = (
    ("loom ca renew prod", "new certificates for the control hosts that `loom cluster init prod` made"),
    ("loom ca rotate prod", "a new authority; the old one is trusted until `loom ca retire prod`"),
    ("loom ca show prod", "authorities and certificates, and when they end"),
    ("loom ca make own", "an authority for a NATS or a proxy of your own"),
    ("loom ca issue own bus.example 10.0.0.9", "a certificate of it, for these names"),
)

DirectoryArgument = Annotated[
    Path, argument(metavar="DIR", help="Directory of `loom cluster init` or `loom ca make`.")
]
DaysOption = Annotated[float, option("--days", help="How long the certificates are valid.")]


def make(directory: DirectoryArgument) -> None:
    """Make a certificate authority in DIR/ca."""
    from torchloom.cli.cluster.authority import Authority, check_available

    check_available()
    signer = Authority(directory / "ca")
    signer.make(f"torchloom {directory.resolve().name}")
    print(f"{signer.bundle_file} is what others trust; keep {signer.key_file} secret")


def issue(
    directory: DirectoryArgument,
    names: Annotated[list[str], argument(metavar="NAME…", help="Names and addresses of the host.")],
    days: DaysOption = 397,
) -> None:
    """Make a certificate and its key for a host, in DIR/<first name>."""
    from torchloom.cli.cluster.authority import Authority, check_available, check_days, write_issued
    from torchloom.errors import Conflict, UsageError

    check_available()
    check_days(days)
    if names[0] == "ca":
        raise UsageError("'ca' cannot be a host's name: the authority is there")
    own = directory / names[0]
    made = Authority(directory / "ca").issue(names, days)
    if (own / "cluster.json").exists():
        raise Conflict(f"{own} is that of a control host", hint=f"use `loom ca renew {directory}`")
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_issued(own, *made)
    print(f"{own / 'host.pem'} and {own / 'host.key'} are for {', '.join(names)}")


def renew(directory: DirectoryArgument, days: DaysOption = 397) -> None:
    """Make new certificates for all control hosts.

    Running servers and services use them for new connections a few seconds after the files were replaced;
    connections that exist are not touched.
    """
    from torchloom.cli.cluster.authority import check_available, check_days

    check_available()
    check_days(days)
    _renew(directory, days)
    _print_copies(directory)


def rotate(
    directory: DirectoryArgument,
    days: Annotated[float, option("--days", help="How long the new authority is valid.")] = 3650,
) -> None:
    """Make a new authority that signs from now on, in two steps.

    First all hosts must trust the new authority beside the old one: copy `ca.pem`. Joined hosts fetch it
    within an hour. Then `loom ca renew` makes certificates of the new authority; after those are copied,
    `loom ca retire` ends the trust in the old one.
    """
    import shutil

    from torchloom.cli.cluster.authority import Authority, check_available, check_days

    check_available()
    check_days(days)
    signer = Authority(directory / "ca")
    signer.rotate(f"torchloom {directory.resolve().name}", days)
    for own in _hosts(directory):
        shutil.copyfile(signer.bundle_file, own / "ca.pem")
    print("Hosts must trust the new authority before any certificate of it is used. Now:")
    _print_copies(directory, "ca.pem")
    print(f"Wait an hour, until all nodes have fetched it. Then `loom ca renew {directory}`, copy what that")
    print(f"prints, and end with `loom ca retire {directory}`.")


def retire(directory: DirectoryArgument) -> None:
    """Stop trusting all authorities but the newest."""
    import shutil

    from torchloom.cli.cluster.authority import Authority, check_available
    from torchloom.errors import Conflict

    check_available()
    signer = Authority(directory / "ca")
    for own in _hosts(directory):
        if not signer.signed(own / "host.pem"):
            raise Conflict(
                f"the certificate of {own.name} is signed by an authority that would be retired, so nobody "
                "would trust it any more",
                hint=f"run `loom ca renew {directory}` and copy what it prints first",
            )
    dropped = signer.retire()
    if not dropped:
        print("There is one authority, and nothing to retire; `loom ca rotate` makes a new one.")
        return
    for own in _hosts(directory):
        shutil.copyfile(signer.bundle_file, own / "ca.pem")
    print(f"{dropped} older authorities are no longer trusted, once this is copied:")
    _print_copies(directory, "ca.pem")


def show(directory: DirectoryArgument) -> None:
    """Show authorities and certificates, and when they end."""
    from torchloom.cli.cluster.authority import Authority, check_available, ends_at, fingerprint, pieces

    check_available()
    signer = Authority(directory / "ca")
    signer.newest()
    for place, one in enumerate(pieces(signer.bundle())):
        print(f"authority  {fingerprint(one)[:16]}  {'signs' if place == 0 else 'is still trusted'}")
    for own in _hosts(directory):
        print(f"{own.name:<10} until {ends_at(own / 'host.pem'):%Y-%m-%d}")


def _renew(directory: Path, days: float) -> None:
    import shutil

    from torchloom.cli.cluster.authority import Authority, write_issued
    from torchloom.cli.cluster.host_files import ClusterHost
    from torchloom.errors import NotFound

    signer = Authority(directory / "ca")
    signer.newest()
    made = {}
    for own in _hosts(directory):
        cluster = ClusterHost.read_directory(own)
        assert cluster is not None
        made[own] = signer.issue(cluster.host.names, days)
    if not made:
        raise NotFound(
            f"{directory} holds no control hosts", hint="`loom ca issue` makes a certificate for another host"
        )
    for own, issued in made.items():  # all of them, or none
        shutil.copyfile(signer.bundle_file, own / "ca.pem")
        write_issued(own, *issued)


def _hosts(directory: Path) -> list[Path]:
    """The directories of control hosts."""
    return sorted(path.parent for path in directory.glob("*/cluster.json"))


def _print_copies(directory: Path, what: str = "{ca.pem,host.pem,host.key}") -> None:
    from torchloom.cli.cluster.host_files import ClusterHost, bracketed

    for own in _hosts(directory):
        cluster = ClusterHost.read_directory(own)
        assert cluster is not None
        print(f"  scp {own}/{what} {bracketed(cluster.host.address)}:.torchloom/cluster/")


SUBVERBS = {"make": make, "issue": issue, "renew": renew, "rotate": rotate, "retire": retire, "show": show}
