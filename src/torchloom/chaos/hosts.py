"""Several hosts on one machine: network namespaces with a cable between every two. For tests; needs root.

A host has one address, on a device of its own, because gloo takes the first address of a device and loopback
has another one. A veth pair leads to every other host, so that a limit on one device is a limit on one
direction of one link. The kernel's `tbf` makes the limit; latency wants `netem`, which many kernels do not
have. What is made is removed again.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

CLONE_NEWNET = 0x40000000

BURST_KB = 16
QUEUE_MS = 400
INTERFACE = "own0"
"""The device with a host's address."""


def why_not() -> str:
    """Why hosts cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"there is no {missing[0]}" if missing else ""


class Hosts:
    """Hosts 0 … count - 1, connected each with each. A context manager."""

    def __init__(self, count: int, *, name: str = "loom", network: str = "10.77.0") -> None:
        self.count = count
        self._name = f"{name}{os.getpid() % 100_000}"
        self._network = network
        self._made: list[str] = []

    def __enter__(self) -> Hosts:
        try:
            self._make()
        except (OSError, subprocess.SubprocessError):
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove them; what still runs inside keeps its namespace until it ends."""
        for space in self._made:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        self._made.clear()

    def address(self, host: int) -> str:
        return f"{self._network}.{host + 1}"

    def command(self, host: int, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on a host."""
        return ["ip", "netns", "exec", self._space(host), *argv]

    def start(self, host: int, argv: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(self.command(host, argv), **more)

    def limit(self, sender: int, receiver: int, bytes_per_s: int) -> None:
        """Limit one direction of one link to this rate; 0: no limit."""
        device = ["dev", self._device(sender, receiver)]
        if not bytes_per_s:
            undo = self.command(sender, ["tc", "qdisc", "del", *device, "root"])
            subprocess.run(undo, capture_output=True, check=False)  # there may be none
            return
        shape = ["rate", f"{8 * bytes_per_s}bit", "burst", f"{BURST_KB}kb", "latency", f"{QUEUE_MS}ms"]
        _run(self.command(sender, ["tc", "qdisc", "replace", *device, "root", "tbf", *shape]))

    def cut(self, host: int, others: Sequence[int] | None = None) -> None:
        """Pull the cables from a host to these others (all), without a word to either end."""
        for other in range(self.count) if others is None else others:
            if other != host:
                self._ip(host, "link", "set", self._device(host, other), "down")

    def mend(self, host: int) -> None:
        """Put all cables of a host back. A device that was down has lost its route."""
        for other in range(self.count):
            if other != host:
                for one, to in ((host, other), (other, host)):
                    device, source = self._device(one, to), ["src", self.address(one)]
                    self._ip(one, "link", "set", device, "up")
                    self._ip(one, "route", "replace", f"{self.address(to)}/32", "dev", device, *source)

    def call(self, host: int, work: Callable[[], T]) -> T:
        """Run `work` with the network of a host, in a thread of its own: its sockets are made there."""
        libc = ctypes.CDLL(None, use_errno=True)

        def there() -> T:
            with open(f"/run/netns/{self._space(host)}") as space:
                if libc.setns(space.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            return work()

        with ThreadPoolExecutor(max_workers=1) as alone:
            return alone.submit(there).result()

    # -- making them ----------------------------------------------------------------------------
    def _make(self) -> None:
        for host in range(self.count):
            _run(["ip", "netns", "add", self._space(host)])
            self._made.append(self._space(host))
            self._ip(host, "link", "set", "lo", "up")
            self._ip(host, "link", "add", INTERFACE, "type", "bridge")  # not every kernel has `dummy`
            self._ip(host, "addr", "add", f"{self.address(host)}/32", "dev", INTERFACE)
            self._ip(host, "link", "set", INTERFACE, "up")
        for one, other in itertools.combinations(range(self.count), 2):
            here, there = self._device(one, other), self._device(other, one)
            peer = ["peer", "name", there, "netns", self._space(other)]
            self._ip(one, "link", "add", here, "type", "veth", *peer)
            for host, to in ((one, other), (other, one)):
                device = self._device(host, to)
                self._ip(host, "link", "set", device, "up")
                source = ["src", self.address(host)]
                self._ip(host, "route", "add", f"{self.address(to)}/32", "dev", device, *source)

    def _space(self, host: int) -> str:
        return f"{self._name}-{host}"

    def _device(self, host: int, to: int) -> str:
        return f"v{host}to{to}"

    def _ip(self, host: int, *args: str) -> None:
        _run(["ip", "-n", self._space(host), *args])


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)
