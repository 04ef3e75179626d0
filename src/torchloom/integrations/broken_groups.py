"""Ends the collectives of gloo process groups with a dead member, at once and not after their timeout.

Gloo has no abort. Three things together do its work: the group's own sockets are shut down, so that what is
in progress fails; whoever waits for it is woken, because gloo does not notice a closed socket in every state;
and the group is taken from torchft's wrapper, so that nothing new begins on it. torchft then skips the step
and makes a new group for the next quorum.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

from torchloom.integrations.group_sockets import is_peer, listening_ports, shut, sockets

T = TypeVar("T")

_GROUPS_KEPT = 4
"""Groups that are remembered; older ones have been replaced by torchft."""
_DEAD_KEPT = 256
_BURIED_S = 900.0
"""A broken group is kept this long: to destroy it would wait for its last operation to time out."""


class WatchedGroup:
    """A process group of torchft, and who waits for its collectives."""

    def __init__(self, number: int, members: frozenset[str]) -> None:
        self.number = number
        self.members = members
        self.sockets: dict[int, int] = {}
        """Inode by descriptor."""
        self.wrapper: Any = None
        self.inner: Any = None
        self.broken = ""
        self.waiting: set[threading.Event] = set()

    def wait(self, work: Any, timeout: timedelta | None) -> Any:
        """Like `work.wait`, but ends with an error as soon as the group is broken."""
        done = threading.Event()
        self.waiting.add(done)
        try:
            future = _future(work)
            if future is None:
                return self._wait_aside(work, timeout, done)
            future.add_done_callback(lambda _: done.set())
            if self.broken:
                done.set()
            done.wait(None if timeout is None else timeout.total_seconds())
        finally:
            self.waiting.discard(done)
        if self.broken and not work.is_completed():
            raise RuntimeError(self.broken)
        return work.wait() if timeout is None else work.wait(timeout)

    def _wait_aside(self, work: Any, timeout: timedelta | None, done: threading.Event) -> Any:
        """A send or a receive of gloo says in no other way when it is done, and only `wait` ends it."""
        ended: list[tuple[Any, Exception | None]] = []

        def wait() -> None:
            try:
                ended.append((work.wait() if timeout is None else work.wait(timeout), None))
            except (RuntimeError, ValueError, OSError) as error:  # raised below, in the thread that waits
                ended.append((None, error))
            finally:
                done.set()

        threading.Thread(target=wait, name="loom-transfer", daemon=True).start()
        if self.broken:
            done.set()
        done.wait()
        if not ended:
            raise RuntimeError(self.broken or "this transfer failed")
        result, error = ended[0]
        if error is not None:
            raise error
        return result

    def end(self, dead: Iterable[str]) -> None:
        self.broken = f"{', '.join(sorted(dead))} has ended or is stopped: this collective cannot complete"
        if self.wrapper is not None and self.wrapper._pg is self.inner:
            self.wrapper._pg = None
        for fd, inode in self.sockets.items():
            shut(fd, inode)
        for waiter in tuple(self.waiting):
            waiter.set()


def _make(made: Future[T], make: Callable[[], T]) -> None:
    try:
        made.set_result(make())
    except (RuntimeError, ValueError, OSError) as error:  # raised in the thread that waits for it
        made.set_exception(error)
    finally:
        if not made.done():
            made.set_exception(sys.exc_info()[1])


def _future(work: Any) -> Any:
    try:
        return work.get_future()
    except RuntimeError:
        return None  # "getFuture not implemented"


class BrokenGroups:
    """The process groups of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._making = threading.local()
        self._groups: list[WatchedGroup] = []
        """The newest last."""
        self._forming: list[WatchedGroup] = []
        """Those that are being made: their members look for each other."""
        self._dead: dict[str, int] = {}
        """The quorum in which each was found dead. One that was only stopped may be in a later quorum."""
        self._buried: list[tuple[float, WatchedGroup]] = []
        atexit.register(self._keep_buried)

    def quorum(self, number: int, members: list[str]) -> None:
        """This thread has received a quorum; a process group for it may follow on this thread."""
        self._making.group = WatchedGroup(number, frozenset(members))

    def aside(self, make: Callable[[], T]) -> T:
        """A part of making a group, in a thread of its own: it cannot be ended, only left alone. Raises as
        soon as a member of the quorum has died; the others would wait for it until their timeout."""
        group: WatchedGroup | None = getattr(self._making, "group", None)
        if group is None:
            return make()
        done, made = threading.Event(), Future[T]()
        group.waiting.add(done)
        made.add_done_callback(lambda _: done.set())
        with self._lock:
            self._forming.append(group)
        try:
            self._end_broken()
            if not group.broken:
                threading.Thread(target=_make, args=(made, make), name="loom-group", daemon=True).start()
                done.wait()
        finally:
            group.waiting.discard(done)
            with self._lock:
                self._forming = [one for one in self._forming if one is not group]
        if group.broken and not made.done():
            raise RuntimeError(group.broken)
        return made.result()

    def before(self) -> None:
        self._making.before = sockets()
        self._making.listening = listening_ports(self._making.before)

    def after(self, wrapper: Any, inner: Any) -> None:
        """The group is made: its connections are new, and not those of a server that was there before."""
        before, known = self._making.before, self._making.listening
        new = {fd: inode for fd, inode in sockets().items() if before.get(fd) != inode}
        group: WatchedGroup = self._making.group
        group.wrapper, group.inner = wrapper, inner
        group.sockets = {fd: inode for fd, inode in new.items() if is_peer(fd, known)}
        wrapper._loom_group = group
        with self._lock:
            self._groups = [*self._groups, group][-_GROUPS_KEPT:]
        self._end_broken()

    def died(self, number: int, ids: Iterable[str]) -> None:
        """These replicas were found dead when `number` was the newest quorum: end what waits for them."""
        with self._lock:
            self._dead |= dict.fromkeys(ids, number)
            while len(self._dead) > _DEAD_KEPT:
                del self._dead[next(iter(self._dead))]
        self._end_broken()

    def _keep_buried(self) -> None:
        """The interpreter ends. To destroy a broken group would wait for its last operation to time out, so
        what is left of them is never destroyed and ends with the process."""
        for _, group in self._buried:
            if group.inner is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group.inner))

    def _end_broken(self) -> None:
        now = time.monotonic()
        with self._lock:
            known = [*self._groups, *self._forming]
            found = {g: [id for id in g.members if self._dead.get(id, -1) >= g.number] for g in known}
            broken = {group: dead for group, dead in found.items() if dead}
            self._forming = [group for group in self._forming if group not in broken]
            self._groups = [group for group in self._groups if group not in broken]
            self._buried = [one for one in self._buried if now - one[0] < _BURIED_S]
            self._buried += [(now, group) for group in broken]
        for group, dead in broken.items():
            group.end(dead)
