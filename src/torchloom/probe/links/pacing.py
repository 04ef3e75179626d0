"""Injected slowness of the network: the kernel paces what this process sends, to one peer or to all.

SO_MAX_PACING_RATE holds for one socket and one direction, needs no right and works on loopback too. Owns
which of the process's own connections are paced and how fast; the delay matrix asks the same rules, so that
it sees what training sees. Connections are distinguished by their ends: the peer writes its own into the
job's store, because only it knows which are its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torchloom.probe.steering.registers import Registers, StoreSilent

SO_MAX_PACING_RATE = 47
"""linux/asm-generic/socket.h; Python's socket module does not name it."""
UNPACED = (1 << 64) - 1
LOOK_AGAIN_NS = 500_000_000
"""Connections that came later are paced as well."""
STORE_NS = 200_000_000
ENDS_ASKED = 40
"""Looks for a peer's ends before it is given up: it may be a long step away from the boundary."""

End = tuple[str, int]


@dataclass
class Rule:
    """What is sent to `peers` (None: to everybody) is paced until then."""

    name: str
    rate: int
    """Bytes a second."""
    until_ns: int
    peers: frozenset[int] | None
    ends: dict[int, frozenset[End]] = field(default_factory=dict)
    looks: int = 0


class Pacing:
    """That of one worker. Everything here may fail: then the fault is not there, and nothing else happens."""

    def __init__(self, registers: Registers, generation: int, rank: int, spared: set[int]) -> None:
        """`spared` are ports that are not the job's own traffic: its store's."""
        self._registers = registers
        self._prefix = f"loom/{generation}/pacing"
        self._rank = rank
        self._spared = spared
        self._rules: list[Rule] = []
        self._paced: set[int] = set()
        """Inodes of the sockets that are paced now."""
        self._looked_ns = 0

    @property
    def busy(self) -> bool:
        return bool(self._rules or self._paced)

    def rate(self, peer: int) -> int:
        """Bytes a second that may be sent to this rank; 0: as many as there are."""
        now_ns = time.monotonic_ns()
        rates = [
            rule.rate
            for rule in self._rules
            if now_ns < rule.until_ns and (rule.peers is None or peer in rule.peers)
        ]
        return min(rates, default=0)

    def begin(self, name: str, rate: int, until_ns: int, peers: frozenset[int] | None) -> None:
        self._rules.append(Rule(name, rate, until_ns, peers))
        self._looked_ns = 0
        self.look()

    def tell_ends(self, name: str) -> None:
        """Somebody is to send slowly to this rank: say which connections that are."""
        ends = sorted({own for _, own, _, _ in _connections()})
        with contextlib.suppress(StoreSilent):
            until_ns = time.monotonic_ns() + 5 * STORE_NS
            self._registers.compare_set(self._key(name, self._rank), json.dumps(ends), until_ns)

    def look(self) -> None:
        """Pace new connections, and let go of those whose time is over."""
        now_ns = time.monotonic_ns()
        over = [rule for rule in self._rules if rule.until_ns <= now_ns]
        if not over and now_ns - self._looked_ns < LOOK_AGAIN_NS:
            return
        self._looked_ns = now_ns
        self._rules = [rule for rule in self._rules if rule not in over]
        for rule in self._rules:
            self._learn_ends(rule)
        paced: set[int] = set()
        for descriptor, _, other, inode in _connections():
            rate = self._rate_to(other)
            if rate:
                paced.add(inode)
                pace(descriptor, rate)
            elif inode in self._paced:
                pace(descriptor, UNPACED)
        self._paced = paced

    def _rate_to(self, end: End) -> int:
        if end[1] in self._spared:
            return 0
        rates = [
            rule.rate
            for rule in self._rules
            if rule.peers is None or any(end in ends for ends in rule.ends.values())
        ]
        return min(rates, default=0)

    def _learn_ends(self, rule: Rule) -> None:
        missing = (rule.peers or frozenset()) - rule.ends.keys()
        if not missing or rule.looks >= ENDS_ASKED:
            return
        rule.looks += 1
        keys = {self._key(rule.name, peer): peer for peer in missing}
        try:
            found = self._registers.look(keys, time.monotonic_ns() + STORE_NS)
        except StoreSilent:
            return
        for key, text in found.items():
            with contextlib.suppress(ValueError, TypeError):  # not what a rank of ours writes
                rule.ends[keys[key]] = frozenset((str(host), int(port)) for host, port in json.loads(text))

    def _key(self, name: str, rank: int) -> str:
        return f"{self._prefix}/{name}/{rank}"


def spared_ports(environment: Mapping[str, str]) -> set[int]:
    """Of the job's store: it is not what training waits for."""
    port = environment.get("MASTER_PORT", "")
    return {int(port)} if port.isdecimal() else set()


def pace(descriptor: int, rate: int) -> None:
    """Limit what a socket sends; a kernel that cannot leaves it as it is."""
    with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
        connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("Q", rate))


def _connections() -> Iterator[tuple[int, End, End, int]]:
    """Descriptor, own end, other end and inode of every TCP connection of this process."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with _borrowed(descriptor) as connection:
                if connection.type != socket.SOCK_STREAM or connection.family not in (
                    socket.AF_INET,
                    socket.AF_INET6,
                ):
                    continue
                own, other = connection.getsockname(), connection.getpeername()
        except OSError:
            continue  # it listens, or is gone meanwhile
        yield descriptor, _end(own), _end(other), status.st_ino


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A second handle on a connection that belongs to somebody else; closing it leaves theirs open."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        yield connection


def _end(address: tuple[object, ...]) -> End:
    """One spelling of an address: a dual-stack socket reports an IPv4 address in its IPv6 form."""
    return str(address[0]).removeprefix("::ffff:"), int(str(address[1]))
