"""The delay matrix, seen from one rank: at an agreed boundary it meets the others one by one and times them.

It has connections of its own instead of a process group's: a group is made by a collective call that may
hang for the backend's timeout, a send or recv that is given up on breaks its group for good, and a group of
the job's own must not carry anything of ours. Ours are opened after the ranks have agreed and closed before
the step continues, every move has a deadline, the whole has a limit (`within_s`), and whatever goes wrong
means fewer measurements. Ends are published in the job's store and a connection proves itself by the token
found there. It measures the network between the hosts; other links of a device (NVLink, InfiniBand verbs)
are not seen.
"""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import json
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchloom.core.detect.tournament import LONGEST_PROBE_S, partners
from torchloom.core.transaction.attempt import decision_key
from torchloom.model.transaction.messages import AttemptId, Changed
from torchloom.probe.links.meeting import Measured, left_s, receive_exactly, receive_from, send_to
from torchloom.probe.links.pacing import pace
from torchloom.probe.steering.registers import Registers, StoreSilent
from torchloom.probe.steering.stopping import Interrupted, is_ours, nap

WITHIN_S = 1.0
PASSES = 4
"""How often every pair measures; the fastest time counts: a rank may briefly have been without a CPU."""
LOOK_S = 0.002
HELLO_NS = 100_000_000
_HELLO = struct.Struct("!16sI")
_SIOCGIFADDR = 0x8915


@dataclass
class _Meetings:
    """What is open while the ranks measure."""

    rank: int
    listener: socket.socket
    token: bytes
    ends: dict[int, tuple[str, int, bytes]] = field(default_factory=dict)
    """Where the others listen, and the token they expect."""
    connections: dict[int, socket.socket] = field(default_factory=dict)
    found: dict[int, Measured] = field(default_factory=dict)

    def close(self) -> None:
        for connection in (self.listener, *self.connections.values()):
            with contextlib.suppress(OSError):
                connection.close()


class Links:
    """The links of one worker. `rate` gives how fast injected faults let it send to a rank."""

    def __init__(
        self,
        registers: Registers,
        environment: Mapping[str, str],
        rank: int,
        world: int,
        rate: Callable[[int], int],
    ) -> None:
        self._registers = registers
        self._environment = environment
        self._rank = rank
        self._world = world
        self._rate = rate

    def problem(self) -> str:
        return "" if self._world > 1 else "a job of one rank has no links"

    def measure(self, attempt: AttemptId, values: Mapping[str, object]) -> tuple[Changed, ...]:
        """One row per rank that was met: `from>to`, delay and time for a megabyte in nanoseconds. Never
        fails: the other ranks do not depend on what this one could measure."""
        asked_s = values.get("within_s", WITHIN_S)
        within_s = min(float(asked_s), LONGEST_PROBE_S) if isinstance(asked_s, int | float) else WITHIN_S
        until_ns = time.monotonic_ns() + int(within_s * 1e9)
        meetings: _Meetings | None = None
        why = "no other rank connected in time"
        try:
            meetings = self._listen(until_ns)
            self._meet_all(meetings, f"{decision_key(attempt)}/links", until_ns)
        except StoreSilent as silent:
            why = f"the job's store: {silent}"
        except Exception as error:  # noqa: BLE001 – training continues after any error
            if not is_ours(error):  # raised by a signal handler of the script's
                raise Interrupted(error) from None
            why = f"{type(error).__name__}: {error}"[:200]
        finally:
            if meetings is not None:
                meetings.close()
        found = meetings.found if meetings is not None else {}
        if not found:
            return ((f"{self._rank}>", None, why),)
        return tuple(
            (f"{self._rank}>{peer}", one.delay_ns, one.transfer_ns) for peer, one in sorted(found.items())
        )

    # -- the others -----------------------------------------------------------------------------
    def _listen(self, until_ns: int) -> _Meetings:
        family, host = own_address(self._environment, until_ns)
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            _use_small_segments(listener, host)
            listener.bind((host, 0))
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        return _Meetings(self._rank, listener, secrets.token_bytes(16))

    def _meet_all(self, meetings: _Meetings, key: str, until_ns: int) -> None:
        began_ns = time.monotonic_ns()
        host, port = meetings.listener.getsockname()[:2]
        told = json.dumps([host, port, meetings.token.hex()])
        meet_until_ns = began_ns + (until_ns - began_ns) // 2
        self._registers.compare_set(f"{key}/{self._rank}", told, meet_until_ns)
        order = partners(self._rank, self._world)
        self._find(meetings, key, {other for other in order if other is not None}, meet_until_ns)
        began_ns = time.monotonic_ns()
        slot_ns = (until_ns - began_ns) // max(1, PASSES * len(order))
        for turn, other in enumerate(order * PASSES):
            # Each round has its own end on a clock that began for all ranks when they had found each other: a
            # pair that is slow in one round does not take the time of the next.
            if other is not None and other in meetings.ends:
                lower_first = turn // len(order) % 2 == 0
                self._meet(meetings, other, began_ns + (turn + 1) * slot_ns, lower_first)

    def _find(self, meetings: _Meetings, key: str, wanted: set[int], until_ns: int) -> None:
        while wanted and time.monotonic_ns() < until_ns:
            keys = {f"{key}/{other}": other for other in wanted}
            with contextlib.suppress(StoreSilent):
                for name, text in self._registers.look(keys, until_ns).items():
                    wanted.discard(keys[name])
                    with contextlib.suppress(ValueError, TypeError):  # not what a rank of ours writes
                        host, port, token = json.loads(text)
                        meetings.ends[keys[name]] = (str(host), int(port), bytes.fromhex(token))
            if wanted:
                nap(LOOK_S)

    def _meet(self, meetings: _Meetings, other: int, until_ns: int, lower_first: bool) -> None:
        """Both directions, one after the other. What fails leaves this pair as it was."""
        try:
            connection = self._connection(meetings, other, until_ns)
            half_ns = time.monotonic_ns() + (until_ns - time.monotonic_ns()) // 2
            if (self._rank < other) is lower_first:
                self._note(meetings, other, send_to(connection, half_ns))
                receive_from(connection, until_ns)
            else:
                receive_from(connection, until_ns)
                self._note(meetings, other, send_to(connection, until_ns))
        except OSError as error:
            if not is_ours(error):
                raise
            lost = meetings.connections.pop(other, None)
            if lost is not None:
                lost.close()

    def _note(self, meetings: _Meetings, other: int, now: Measured) -> None:
        before = meetings.found.get(other)
        if before is not None:
            now.delay_ns = min(now.delay_ns, before.delay_ns)
            now.transfer_ns = min(now.transfer_ns, before.transfer_ns)
        meetings.found[other] = now

    def _connection(self, meetings: _Meetings, other: int, until_ns: int) -> socket.socket:
        """The lower rank calls, the higher one takes the call, also of one whose turn comes later."""
        while other not in meetings.connections:
            if self._rank < other:
                host, port, token = meetings.ends[other]
                made = socket.socket(meetings.listener.family, socket.SOCK_STREAM)
                meetings.connections[other] = made
                _use_small_segments(made, host)
                made.settimeout(left_s(until_ns))
                made.connect((host, port))
                made.sendall(_HELLO.pack(token, self._rank))
                self._prepare(made, other)
            else:
                meetings.listener.settimeout(left_s(until_ns))
                made, _ = meetings.listener.accept()
                self._welcome(meetings, made, until_ns)
        return meetings.connections[other]

    def _welcome(self, meetings: _Meetings, made: socket.socket, until_ns: int) -> None:
        try:
            hello_ns = min(until_ns, time.monotonic_ns() + HELLO_NS)
            token, caller = _HELLO.unpack(receive_exactly(made, _HELLO.size, hello_ns))
        except OSError as error:
            made.close()
            if not is_ours(error):
                raise
            return
        if not secrets.compare_digest(token, meetings.token) or not 0 <= caller < self._world:
            made.close()
            return
        before = meetings.connections.pop(caller, None)
        if before is not None:
            before.close()
        meetings.connections[caller] = made
        self._prepare(made, caller)

    def _prepare(self, connection: socket.socket, other: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        rate = self._rate(other)
        if rate:
            pace(connection.fileno(), rate)


def _use_small_segments(connection: socket.socket, host: str) -> None:
    """A segment of loopback has 64 kB, and Linux paces no less than two of them: short transfers would show
    nothing of a pace."""
    if host.startswith("127.") or host == "::1":
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)


def own_address(environment: Mapping[str, str], until_ns: int) -> tuple[int, str]:
    """Family and address under which the other ranks reach this one: that of the interface the job was told
    to use, else the one that leads to the job's store."""
    interface = environment.get("GLOO_SOCKET_IFNAME", "")
    if interface:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            request = struct.pack("256s", interface.encode()[:15])
            answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
            return socket.AF_INET, socket.inet_ntoa(answer[20:24])
    host, port = environment.get("MASTER_ADDR", "127.0.0.1"), environment.get("MASTER_PORT", "1")
    family, address = _resolved(host, int(port), until_ns)
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect(address)
        return family, asking.getsockname()[0]


def _resolved(host: str, port: int, until_ns: int) -> tuple[int, Any]:
    """Family and address. A name server that does not answer holds nobody up: it is asked by a thread, which
    is left behind then."""
    with contextlib.suppress(socket.gaierror):
        number = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0]
        return number[0], number[4]
    found: list[tuple[int, Any]] = []
    awaited = _thread.allocate_lock()
    awaited.acquire()

    def ask() -> None:
        with contextlib.suppress(OSError):
            found.extend((i[0], i[4]) for i in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM))
        awaited.release()

    _thread.start_new_thread(ask, ())
    awaited.acquire(timeout=left_s(until_ns))
    if not found:
        raise OSError(f"the address of {host} is not known in time")
    return found[0]
