"""Where other agents of a job bring copies of their states and fetch states of lost hosts.

    put   {rank, generation, save, keep, size}   → {why}; then the slot (slot_transfer.py) → {done}
    list  {rank, generation}                     → {states: [{save, generation, branch, step, world, size}]}
    get   {rank, save, kind}                     → {size}; then the slot
    notes {}                                     → {notes}: what this host knows of the line of descent

Owns the listening socket and the copies on this host. States that are put are taken in another process
(copy_process.py). It takes nothing from a generation older than the one that runs here, keeps two states of
each rank, and takes no more memory than the tier may. The port is bound at the agent's start and answers from
the first job on whose states are copied.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from torchloom.agent.neighbour import plans, slot_transfer
from torchloom.agent.neighbour.channel import Channel, NeighbourFailed, answer, greet
from torchloom.agent.neighbour.slot_transfer import KeptSlot, SendingPace
from torchloom.checkpoint.memory import tier
from torchloom.errors import LoomError
from torchloom.home import Home
from torchloom.model.ids import check_token

log = logging.getLogger(__name__)

_CALLERS = 16
"""Connections at a time; further ones wait."""
_PORT_FILE = "memory-port"
GREETING = "lighthouse:"
"""Before the name of a torchft job: the caller asks for the port of its lighthouse."""
HandOver: TypeAlias = Callable[[Path, Channel, dict[str, Any]], bool]
"""Gives a connection that begins with this request to another process; False: it stays here."""


class MemoryDoor:
    """Serves other agents on threads of its own."""

    def __init__(
        self,
        home: Home,
        address: str,
        lighthouse: Callable[[str], tuple[bytes, int] | None] = lambda name: None,
        elsewhere: HandOver | None = None,
    ) -> None:
        self._home, self._elsewhere = home, elsewhere
        self._lighthouse = lighthouse
        """Key and port of the lighthouse of a torchft job, if it is here."""
        self._socket = _bind(home, address)
        self.port = int(self._socket.getsockname()[1]) if self._socket is not None else 0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._room = threading.BoundedSemaphore(_CALLERS)

    def open(self) -> None:
        """Answer from now on; called when a job has states to copy."""
        if self._socket is None or self._thread is not None:
            return
        self._socket.listen(128)
        self._thread = threading.Thread(target=self._accept, name="loom-memory-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._socket is not None:
            with suppress(OSError):  # wakes the thread that accepts
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _accept(self) -> None:
        assert self._socket is not None
        while not self._closed.is_set():
            self._room.acquire()
            try:
                connection, _ = self._socket.accept()
            except OSError:
                self._room.release()
                if self._closed.wait(0.1):
                    return
                continue
            threading.Thread(target=self._serve, args=(connection,), name="loom-memory", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                job, theirs = greet(connection)
                if job.startswith(GREETING):
                    self._say_lighthouse(connection, job.removeprefix(GREETING), theirs)
                    return
                folder = tier.directory(self._home.boxes, check_token(job, "job name"))
                plan = plans.read(folder)
                if plan is None:
                    raise NeighbourFailed(f"nothing of {job} is kept here")
                channel = answer(connection, theirs, plan.secret)
                Visit(folder, channel, self._closed.is_set, self._elsewhere).run()
        except (LoomError, OSError) as error:
            log.debug("another agent was not served: %s", error)
        finally:
            self._room.release()

    def _say_lighthouse(self, connection: socket.socket, name: str, theirs: bytes) -> None:
        found = self._lighthouse(name)
        if found is None:
            raise NeighbourFailed(f"the lighthouse of {name} is not here")
        answer(connection, theirs, found[0]).say(port=found[1])


class Visit:
    """One connection of another agent."""

    def __init__(
        self,
        folder: Path,
        channel: Channel,
        closed: Callable[[], bool],
        elsewhere: HandOver | None = None,
    ) -> None:
        self._folder, self._channel, self._closed, self._elsewhere = folder, channel, closed, elsewhere

    def run(self, asked: dict[str, Any] | None = None) -> None:
        """`asked`: what was asked first, if it was heard already."""
        while True:
            try:
                asked = asked if asked is not None else self._channel.hear()
            except NeighbourFailed:
                return  # the caller has left
            try:
                match asked.get("ask"):
                    case "put":
                        if self._elsewhere is not None:  # what another process does is not done here as well
                            self._elsewhere(self._folder, self._channel, asked)
                            return
                        self._put(asked)
                    case "list":
                        self._list(asked)
                    case "get":
                        self._get(asked)
                    case "notes":
                        self._channel.say(notes=read_notes(self._folder))
                    case _:
                        return
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise NeighbourFailed(f"a request is not valid ({error})") from error
            asked = None

    def _put(self, asked: dict[str, Any]) -> None:
        rank, size, save = int(asked["rank"]), int(asked["size"]), str(asked["save"])
        why, path = self._place(rank, int(asked["generation"]), size, save, str(asked["keep"]))
        self._channel.say(why=why)
        if why or path is None:
            return
        slot_transfer.receive(self._channel, path, size, save, lambda: self._stays(asked))
        self._channel.say(done=True)

    def _place(self, rank: int, generation: int, size: int, save: str, keep: str) -> tuple[str, Path | None]:
        """Why a copy is not taken, or where it goes. What is neither it nor to be kept is given up."""
        plan = plans.read(self._folder)
        if plan is None or generation < plan.generation:
            return "its generation is over", None
        if rank < 0:
            raise ValueError("no such rank")
        here = slot_transfer.copied_slots(self._folder, rank)
        kept = [slot for slot in here if slot.header.save == keep]
        for slot in here:
            if slot not in kept[:1]:
                slot_transfer.wipe(slot)
        used = {slot.path for slot in kept[:1]}
        paths = [tier.copy(self._folder, rank, slot) for slot in range(slot_transfer.COPIES)]
        path = next(path for path in paths if path not in used)
        try:
            slot_transfer.reserve(path, size)
        except NeighbourFailed as error:
            return error.message, None
        return "", path

    def _stays(self, asked: dict[str, Any]) -> bool:
        plan = plans.read(self._folder)  # released, or a newer generation has begun
        return plan is not None and int(asked["generation"]) >= plan.generation and not self._closed()

    def _list(self, asked: dict[str, Any]) -> None:
        states = []
        for slot in self._states(int(asked["rank"])):
            name = slot.header.name
            states.append(
                {
                    "save": slot.header.save,
                    "generation": name.generation,
                    "branch": name.branch,
                    "step": name.step,
                    "world": slot.header.world,
                    "size": slot.header.whole,
                }
            )
        self._channel.say(states=states)

    def _get(self, asked: dict[str, Any]) -> None:
        save = str(asked["save"])
        if asked["kind"] == tier.SHARED:
            found = slot_transfer.shared_slots(self._folder)
            found += slot_transfer.gathered_slots(self._folder, tier.SHARED)
        else:
            found = self._states(int(asked["rank"]))
        slot = next((one for one in found if one.header.save == save), None)
        self._channel.say(size=slot.header.whole if slot is not None else 0)
        if slot is not None:
            slot_transfer.send(self._channel, slot, SendingPace(0), lambda: not self._closed())

    def _states(self, rank: int) -> list[KeptSlot]:
        """What is here of a rank: its own memory, if it ran here, copies, and what was gathered."""
        return slot_transfer.all_slots(self._folder, rank)


def read_notes(folder: Path) -> dict[str, str]:
    """The small files that say which generations trained and from what, as they are."""
    found = {}
    for path in (tier.line_file(folder), tier.numbers(folder)):
        with suppress(OSError, UnicodeDecodeError):
            found[path.name] = path.read_text()
    return found


def _bind(home: Home, address: str) -> socket.socket | None:
    """The port of the last agent of this home if it is free, so that neighbours find this one again."""
    kept = home.root / _PORT_FILE
    ports = [0]
    with suppress(OSError, ValueError):
        ports.insert(0, int(kept.read_text()))
    for port in ports:
        for host in (address, ""):  # an address that others reach us by need not be one of this host
            with suppress(OSError, OverflowError):
                sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
                try:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind((host, port))
                except OSError:
                    sock.close()
                    raise
                with suppress(OSError):
                    kept.write_text(str(sock.getsockname()[1]))
                return sock
    log.warning("no port can be had for copies of states in memory; none are kept")
    return None
