"""Several hosts on one machine: network namespaces with a cable between every two. For tests; needs root.

A host has one address, on a device of its own, because gloo takes the first address of a device and loopback
has another one. A veth pair leads to every other host, so that a limit on one device is a limit on one
direction of one link. The kernel's `tbf` makes the limit; latency wants `netem`, which many kernels do not
have. What is made is removed again.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

CLONE_NEWNET = 0x40000000

BURST_KB = 16
QUEUE_MS = 400
INTERFACE = "own0"
"""The device with a host's address."""


@cache
def why_not() -> str:
    """Why hosts cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"there is no {missing[0]}"
    try:
        with Hosts(2, name="loomtry", network="10.76.0"):
            return ""
    except (OSError, subprocess.SubprocessError) as error:
        return f"this machine cannot make network namespaces ({error})"


_numbers = itertools.count()
"""A process may have several fleets at once, also with the same addresses: no cable connects them."""


class Hosts:
    """Hosts 0 … count - 1, connected each with each. A context manager."""

    def __init__(self, count: int, *, name: str = "loom", network: str = "10.77.0") -> None:
        self.count = count
        self._name = f"{name}{os.getpid() % 100_000}-{next(_numbers)}"
        self._network = network
        """What the addresses begin with: `10.77.0`, or of IPv6 `fd00:`."""
        self._whole = 128 if ":" in network else 32
        """Bits of an address."""
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
        between = ":" if ":" in self._network else "."
        return f"{self._network}{between}{host + 1}"

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

    def drop(self, sender: int, receiver: int) -> None:
        """Lose everything in one direction of one link, without a word to either end; `limit` 0 ends it."""
        device = ["dev", self._device(sender, receiver)]
        _run(self.command(sender, ["tc", "qdisc", "replace", *device, "root", "pfifo", "limit", "0"]))

    def cut(self, host: int, others: Sequence[int] | None = None) -> None:
        """Pull the cables from a host to these others (all), without a word to either end."""
        named = [other for other in (range(self.count) if others is None else others) if other != host]
        self._ip_all(host, [f"link set {self._device(host, other)} down" for other in named])

    def mend(self, host: int) -> None:
        """Put all cables of a host back. A device that was down has lost its route."""
        others = [other for other in range(self.count) if other != host]
        for one, ends in ((host, others), *((other, [host]) for other in others)):
            self._ip_all(one, [f"link set {self._device(one, to)} up" for to in ends])
        for one, ends in ((host, others), *((other, [host]) for other in others)):
            self._ip_all(one, [line for to in ends for line in self._routes(one, to)])

    def enter(self, host: int) -> None:
        """The calling thread has the network of a host from now on: its sockets are made there."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self._space(host)}") as space:
            if libc.setns(space.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")

    def call(self, host: int, work: Callable[[], T]) -> T:
        """Run `work` with the network of a host, in a thread of its own."""
        with ThreadPoolExecutor(max_workers=1, initializer=self.enter, initargs=(host,)) as alone:
            return alone.submit(work).result()

    def processes(self, host: int) -> list[int]:
        """The processes that run on a host."""
        space = os.stat(f"/run/netns/{self._space(host)}").st_ino
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdecimal():
                with contextlib.suppress(OSError):  # it has ended
                    if os.stat(f"/proc/{entry}/ns/net").st_ino == space:
                        found.append(int(entry))
        return found

    # -- making them ----------------------------------------------------------------------------
    def _make(self) -> None:
        for host in range(self.count):
            _run(["ip", "netns", "add", self._space(host)])
            self._made.append(self._space(host))
            own = ["nodad"] if self._whole == 128 else []  # usable at once
            self._ip(host, "link", "set", "lo", "up")
            self._ip(host, "link", "add", INTERFACE, "type", "bridge")  # not every kernel has `dummy`
            self._ip(host, "addr", "add", f"{self.address(host)}/{self._whole}", *own, "dev", INTERFACE)
            self._ip(host, "link", "set", INTERFACE, "up")
        for one, other in itertools.combinations(range(self.count), 2):
            here, there = self._device(one, other), self._device(other, one)
            peer = ["peer", "name", there, "address", _hardware(other, one), "netns", self._space(other)]
            self._ip(one, "link", "add", here, "address", _hardware(one, other), "type", "veth", *peer)
            for host, to in ((one, other), (other, one)):
                self._ip_all(host, [f"link set {self._device(host, to)} up", *self._routes(host, to)])

    def _space(self, host: int) -> str:
        return f"{self._name}-{host}"

    def _device(self, host: int, to: int) -> str:
        return f"v{host}to{to}"

    def _routes(self, host: int, to: int) -> list[str]:
        device, there = f"dev {self._device(host, to)}", self.address(to)
        found = [f"route replace {there}/{self._whole} {device} src {self.address(host)}"]
        if self._whole == 128:  # a device answers for another one's address with IPv4 only
            found.append(f"neigh replace {there} lladdr {_hardware(to, host)} {device} nud permanent")
        return found

    def _ip_all(self, host: int, lines: Sequence[str]) -> None:
        """Several commands at once: a process for each would take longer than what it does."""
        text = "\n".join(lines) + "\n"
        command = ["ip", "-n", self._space(host), "-batch", "-"]
        subprocess.run(command, input=text, text=True, check=True, capture_output=True, timeout=20)

    def _ip(self, host: int, *args: str) -> None:
        _run(["ip", "-n", self._space(host), *args])


def _hardware(host: int, to: int) -> str:
    """Hardware address of a host's end of a cable."""
    return f"02:00:00:00:{host:02x}:{to:02x}"


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)
