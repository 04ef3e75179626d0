"""Starts, watches, restarts and adopts the lighthouses of this host, and opens and closes their doors.

A lighthouse outlives the agent. One that dies is started again within moments, with the same doors at the
same ports; managers retry until then. It ends by itself when its last door is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from torchloom.agent.lighthouse import records
from torchloom.agent.lighthouse.records import ControlReply, ControlRequest, door_of
from torchloom.agent.tasks import Tasks
from torchloom.errors import SpawnFailed
from torchloom.home import Home, private_directory
from torchloom.model.ids import check_token
from torchloom.model.node import RendezvousRef
from torchloom.model.quorum import LighthouseSite, LinkNotice, ReplicaOutcome, ReplicaSeat
from torchloom.model.worker import WorkerRef
from torchloom.spawner.unix_socket import usable_address

log = logging.getLogger(__name__)

_UP_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.02
_WATCH_EVERY_S = 0.05
_HOST = "127.0.0.1"
_OUTCOMES_KEPT = 64


class LighthouseAway(SpawnFailed):
    """The lighthouse does not answer at the moment, or is on another node that is not reached. Whether it did
    what it was asked for is not known; asked again, it does nothing twice."""


class Lighthouses:
    """All of this host, by the torchft job they belong to."""

    def __init__(self, home: Home, tasks: Tasks, node: str = "", address: str = "") -> None:
        self._home = home
        self._tasks = tasks
        self._node, self._address = node, address
        self._directory = home.root / "agent" / "lighthouses"
        self._links: dict[str, _Link] = {}
        self._sets: dict[str, str] = {}
        """Torchft job by door."""
        self._lock = asyncio.Lock()
        self._asked: set[tuple[str, int]] = set()
        """Changes, by torchft job and version, whose outcome somebody waits for."""
        self._outcomes: dict[tuple[str, int], ReplicaOutcome] = {}

    async def adopt(self) -> bool:
        """Connect to what an earlier agent started; start again what died meanwhile. Returns whether there
        is any."""
        if not self._directory.is_dir():
            return False
        for path in sorted(self._directory.glob("*.json")):
            record = records.read(path)
            if record is None or not record.doors:
                path.unlink(missing_ok=True)
                continue
            for door in record.doors:
                if door not in record.owners:
                    self._sets[door] = record.set
            self._link(record.set)
        return bool(self._links)

    async def open(
        self, seat: ReplicaSeat, ref: RendezvousRef, site: LighthouseSite | None = None, key: str = ""
    ) -> tuple[str, str]:
        """The addresses of a new door, or of the one that is open already, and of the news. `site`: where the
        lighthouse is."""
        if importable := _why_not():
            raise SpawnFailed(importable)
        check_token(seat.set, "job name")
        door = door_of(ref.job, ref.generation)
        async with self._lock:
            path = self._file(seat.set)
            known = records.read(path)
            if known is None:
                if (ended := self._links.pop(seat.set, None)) is not None:
                    await ended.ended()
                private_directory(self._directory)
                made = records.fresh(seat, self._node, self._address)
                made.key, made.site = key, site
                records.write(path, made)
            link = self._link(seat.set)
            if known is not None and known.site is not None and site is not None and site.term > known.term:
                await link.ask(ControlRequest(do="move", site=site))
            reply = await link.ask(ControlRequest(do="open", door=door))
        self._sets[door] = seat.set
        return f"{_HOST}:{reply.port}", f"{_HOST}:{reply.news_port}"

    async def close(self, ref: RendezvousRef, of: str = "") -> None:
        """`of`: it is the door of another node, at the lighthouse of this torchft job."""
        door = door_of(ref.job, ref.generation)
        name = of or self._sets.pop(door, "")
        if not name:
            return
        async with self._lock:
            if name not in self._links:
                return
            await self._keep_outcomes(name)
            await self._links[name].ask(ControlRequest(do="close", door=door))
            await self._forget_ended(name)

    async def _forget_ended(self, name: str) -> None:
        """A lighthouse without a door ends. It may have doors of other nodes when those here are closed."""
        record = records.read(self._file(name))
        if name not in self._sets.values() and (record is None or not record.doors):
            await self._links.pop(name).ended()

    async def move(self, name: str, site: LighthouseSite) -> tuple[str, ...]:
        """The lighthouse of this torchft job is there from now on. Returns the nodes that it waits for."""
        async with self._lock:
            if name not in self._links or not self._file(name).exists():
                return ()
            link = self._links[name]
            await self._keep_outcomes(name)
            await link.ask(ControlRequest(do="move", site=site))
            record = records.read(self._file(name))
            if record is None or not record.doors:
                await self._links.pop(name).ended()
                return ()
            if site.node != self._node:
                return ()
            return (await link.ask(ControlRequest(do="status"))).awaited

    def gate(self, name: str) -> tuple[bytes, int] | None:
        """Of the lighthouse here: its key, and the port where it serves other nodes. For any thread."""
        record = records.read(self._file(check_token(name, "job name")))
        if record is None or not record.key or record.relays or not record.gate_port:
            return None
        return bytes.fromhex(record.key), record.gate_port

    def serves(self, worker: WorkerRef) -> bool:
        """Whether it belongs to a replica with a door here."""
        return door_of(worker.job, worker.generation) in self._sets

    def gone(self, job: str, generation: int) -> None:
        """A worker behind this door has ended, so its replica has: report it without delay."""
        door = door_of(job, generation)
        name = self._sets.get(door, "")
        if name and name in self._links:
            self._tasks.start(self._say_gone(name, door), f"end of {door}")

    async def _say_gone(self, name: str, door: str) -> None:
        link = self._links.get(name)
        if link is not None:
            await link.ask(ControlRequest(do="gone", door=door))

    async def status(self, name: str) -> ControlReply | None:
        link = self._links.get(name)
        return await link.ask(ControlRequest(do="status")) if link is not None else None

    async def notices(self, name: str, reported: int) -> tuple[LinkNotice, ...]:
        """What the lighthouse of this torchft job, if it is here, has to report of its replicas' links; all
        up to the notice `reported` is in the stream."""
        link = self._links.get(name)
        asked = ControlRequest(do="links", version=reported)
        return (await link.ask(asked)).notices if link is not None else ()

    def names(self) -> tuple[str, ...]:
        """The torchft jobs with replicas here."""
        return tuple(self._links)

    async def seat(self, name: str, job: str, generation: int, *, out: bool, why: str) -> None:
        """Leave this replica out of the next quorums, or take it back. Again is harmless."""
        do: Literal["leave-out", "take-back"] = "leave-out" if out else "take-back"
        await self._known(name).ask(ControlRequest(do=do, door=door_of(job, generation), why=why))

    async def change(
        self, name: str, version: int, values: Mapping[str, Any], at_step: int, kind: str = "set"
    ) -> None:
        """Propose this to all replicas of this torchft job. Again is harmless."""
        request = ControlRequest(
            do="change", version=version, values=dict(values), at_step=at_step, kind=kind
        )
        await self._known(name).ask(request)

    async def withdraw(self, name: str, version: int, why: str) -> None:
        await self._known(name).ask(ControlRequest(do="withdraw", version=version, why=why))

    async def outcome(self, name: str, version: int) -> ReplicaOutcome | None:
        """None while the replicas have not all applied it."""
        self._asked.add((name, version))
        if (name, version) not in self._outcomes:
            found = (await self._known(name).ask(ControlRequest(do="outcome", version=version))).outcome
            if found is None:
                return None
            self._outcomes[name, version] = found
        self._asked.discard((name, version))
        while len(self._outcomes) > _OUTCOMES_KEPT:
            del self._outcomes[next(iter(self._outcomes))]
        return self._outcomes[name, version]

    async def _keep_outcomes(self, name: str) -> None:
        """A replica ends, perhaps because of a change, and its lighthouse may end with it: ask it before."""
        for version in [version for known, version in self._asked if known == name]:
            await self.outcome(name, version)

    def _known(self, name: str) -> _Link:
        if name not in self._links:
            raise SpawnFailed(f"no replica of {name} runs here")
        return self._links[name]

    def _link(self, name: str) -> _Link:
        if name not in self._links:
            private_directory(self._home.sockets)
            socket = self._home.sockets / f"lighthouse-{name}"
            made = self._links[name] = _Link(self._file(name), socket, self._home.logs_dir)
            self._tasks.start(made.watch(), f"lighthouse of {name}")
        return self._links[name]

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.json"


class _Link:
    """The connection to one lighthouse process. Whoever finds it broken starts the process again."""

    def __init__(self, record: Path, socket: Path, logs: Path) -> None:
        self._record = record
        self._socket = socket
        self._log = logs / f"{socket.name}.log"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = asyncio.Lock()
        self._over = False

    async def ask(self, request: ControlRequest) -> ControlReply:
        async with self._lock:
            for attempt in (1, 2):
                try:
                    reader, writer = await self._connected()
                except SpawnFailed:
                    if request.do != "open" and not self._record.exists():
                        return ControlReply()  # it has ended, as it should after its last door
                    raise
                try:
                    async with asyncio.timeout(_UP_WITHIN_S):
                        writer.write(msgspec.json.encode(request) + b"\n")
                        await writer.drain()
                        line = await reader.readline()
                except (OSError, TimeoutError):
                    line = b""
                except asyncio.CancelledError:
                    self._drop()  # nobody may take its answer for his own
                    raise
                if line:
                    reply = msgspec.json.decode(line, type=ControlReply)
                    if reply.away:
                        raise LighthouseAway(f"the lighthouse of {self._record.stem} is not reached")
                    if reply.failed:
                        raise SpawnFailed(f"the lighthouse failed at {request.do!r}: {reply.failed}")
                    return reply
                self._drop()
                log.info("the lighthouse %s does not answer (%d)", self._record.stem, attempt)
        raise LighthouseAway(f"the lighthouse of {self._record.stem} does not answer")

    async def watch(self) -> None:
        """Keep the process alive: its socket shows when it dies."""
        while not self._over and self._record.exists():
            try:
                async with self._lock:
                    await self._connected()
            except (SpawnFailed, OSError) as error:
                log.warning("%s", error)
            await asyncio.sleep(_LOOK_EVERY_S if self._reader is None else _WATCH_EVERY_S)

    async def ended(self) -> None:
        """Its last door is closed: wait for its end."""
        self._over = True
        self._drop()
        process = self._process
        for _ in range(int(_UP_WITHIN_S / _LOOK_EVERY_S)):
            if (process is None or process.poll() is not None) and not self._record.exists():
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._process is not None and self._process.poll() is not None:
            self._process = None  # it was started here and has ended, whatever its connection looks like
            self._drop()
        reader, writer = self._reader, self._writer
        # A process that dies before it has read all leaves an error, and no end of the stream.
        if reader is not None and writer is not None and not reader.at_eof() and reader.exception() is None:
            return reader, writer
        self._drop()
        for look in range(int(_UP_WITHIN_S / _LOOK_EVERY_S)):
            try:
                with usable_address(self._socket) as address:
                    self._reader, self._writer = await asyncio.open_unix_connection(address)
                return self._reader, self._writer
            except (ConnectionRefusedError, FileNotFoundError):
                if not self._record.exists():
                    raise SpawnFailed(f"the lighthouse of {self._record.stem} has ended") from None
                if self._process is None or self._process.poll() is not None:
                    if look > 1 and self._process is not None:
                        await asyncio.sleep(1.0)  # it ends as soon as it starts; its log says why
                    self._start()
            await asyncio.sleep(_LOOK_EVERY_S)
        raise LighthouseAway(f"the lighthouse of {self._record.stem} did not start; see {self._log}")

    def _start(self) -> None:
        command = [sys.executable, "-m", "torchloom.agent.lighthouse", str(self._record), str(self._socket)]
        with self._log.open("ab") as log_file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
                env={**os.environ, "GRPC_VERBOSITY": "ERROR"},
            )


def _why_not() -> str:
    from importlib.util import find_spec

    if find_spec("grpc") is not None:
        return ""
    return "torchloom needs grpcio for the lighthouse of a torchft job: pip install 'torchloom[torchft]'"
