"""Nodes that are hosts of their own: network namespaces, with cables that a test pulls. Needs root.

Node `a` has the control service and the NATS server and is drained, so that it runs no job. The test itself
is on that host. Owns the hosts; `nodes.Nodes` has what runs on them.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodes import Nodes
from stack import BIN, wait_until

from torchloom.chaos.hosts import CLONE_NEWNET, INTERFACE, Hosts

CONTROL = 0


class CutNodes(Nodes):
    def __init__(self, root: Path, hosts: Hosts, *others: str) -> None:
        super().__init__(root, *others)
        self.hosts = hosts
        self.address = hosts.address(CONTROL)
        self.shm_mb = 0
        """Size of a /dev/shm that each agent and its workers have for themselves; 0: the machine's."""

    def host(self, name: str) -> int:
        return list(self.stacks).index(name)

    def command(self, name: str) -> list[str]:
        host = self.host(name)
        place = ["--address", self.hosts.address(host), "--interface", INTERFACE]
        mount = f"mount -t tmpfs -o size={self.shm_mb}m none /dev/shm"
        own = ["sh", "-c", f'{mount} && exec "$@"', "sh"] if self.shm_mb else []
        return self.hosts.command(host, [*own, str(BIN / "loom"), "agent", *place])

    def start(self) -> None:
        super().start()
        self.near.loom("node", "drain", "a")

    # -- faults ---------------------------------------------------------------------------------------
    def cut(self, name: str) -> None:
        """From all others, both ways."""
        self.hosts.cut(self.host(name))

    def part(self, one: str, other: str) -> None:
        """These two from each other; all else works."""
        self.hosts.cut(self.host(one), [self.host(other)])

    def mute(self, name: str) -> None:
        """Nothing that it sends arrives; it receives."""
        for other in self._others(name):
            self.hosts.drop(self.host(name), other)

    def deafen(self, name: str) -> None:
        """It receives nothing; what it sends arrives."""
        for other in self._others(name):
            self.hosts.drop(other, self.host(name))

    def slow(self, name: str, bytes_per_s: int) -> None:
        for other in self._others(name):
            self.hosts.limit(self.host(name), other, bytes_per_s)
            self.hosts.limit(other, self.host(name), bytes_per_s)

    def mend(self, name: str) -> None:
        self.hosts.mend(self.host(name))
        self.slow(name, 0)

    def _others(self, name: str) -> list[int]:
        return [host for host in range(self.hosts.count) if host != self.host(name)]

    def wait_silent(self, name: str) -> None:
        wait_until(lambda: self.view(name)["state"] == "unreachable", f"{name} is silent")


@contextmanager
def cut_nodes(*others: str, shm_mb: int = 0, **env: str) -> Iterator[CutNodes]:
    """`env`: of all agents."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (
        tempfile.TemporaryDirectory(prefix="loom-c-") as root,
        open("/proc/self/ns/net") as home,
        Hosts(len(others) + 1, name="loomc", network="10.78.0") as hosts,
    ):
        hosts.enter(CONTROL)
        nodes = CutNodes(Path(root), hosts, *others)
        nodes.shm_mb = shm_mb
        for stack in nodes.stacks.values():
            stack.env |= env
        try:
            nodes.start()
            yield nodes
        finally:
            try:
                for name in nodes.stacks:
                    nodes.mend(name)
                nodes.close()
            finally:
                assert libc.setns(home.fileno(), CLONE_NEWNET) == 0
