"""The agent's memory: which workers and stores run on this host, and the means to act on them.

Owns the tables and the inventory made from them. It starts, stops and watches nothing itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from torchloom import __version__
from torchloom.agent.checkpoints.save_reports import Saves
from torchloom.agent.journal import Journal, ProcessNote
from torchloom.agent.lighthouse.keeper import Lighthouses
from torchloom.agent.logs.watch import LogWatch
from torchloom.agent.neighbour.copy_process import CopyProcess
from torchloom.agent.neighbour.door import MemoryDoor
from torchloom.agent.neighbour.preparing import Fetches
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.observe.devices import Devices
from torchloom.agent.observe.kernel_log import KernelLog
from torchloom.agent.processes.learned_spawners import LearnedSpawners
from torchloom.agent.processes.process import Process, boot_id
from torchloom.agent.processes.spawners import Spawners
from torchloom.agent.reporting import Reporter
from torchloom.errors import BlackBoxDamaged
from torchloom.home import Home
from torchloom.model.devices import DeviceReading
from torchloom.model.effects import EffectBase
from torchloom.model.node import Inventory, LiveWorker, RendezvousAddress, RendezvousRef
from torchloom.model.transaction.messages import Answer, AttemptId
from torchloom.model.worker import DeviceUse, WorkerRef
from torchloom.wire import codec
from torchloom.wire.blackbox import Header


def order_id(effect: EffectBase) -> str:
    """Identifies what an effect started, even if a job's name or the event stream is reused."""
    return hashlib.sha256(codec.encode(effect)).hexdigest()[:12]


@dataclass
class ToldText:
    """A text of the black box, sent when it changes and from time to time."""

    version: int = 0
    age: int = 0


@dataclass(eq=False, kw_only=True)
class LocalWorker:
    """One worker process of this host, from its start (or adoption) to the acknowledgement of its exit."""

    ref: WorkerRef
    order: str
    """Which start order it came from."""
    pid: int
    start_ticks: int
    process: Process | None
    """None if the process was gone before we could open a pidfd."""
    box: ReadableBox | None
    log: Path
    spawner: str
    """Key of its spawner; empty when unknown."""
    devices: tuple[DeviceUse, ...] = ()
    blind: str = ""
    note: ProcessNote | None = None
    """Its journal entry, if it has no box."""
    damaged_box: Path | None = None
    """The file of an unreadable box; removed with the worker."""
    started_ns: int = field(default_factory=time.monotonic_ns)
    signalled: bool = True
    """Whether this agent may have sent it a signal. Unknown of one that another agent started: it may."""
    ending: bool = False
    """Its process has ended; the exit report is being prepared."""
    told: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once its exit is reported."""
    oom_kills: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=8))
    """The OOM kills counted in its cgroup at the last looks. Several, because a look may come between the
    kill and the end of a process that has much memory to give back."""
    first_step_told: bool = False
    end_seen: bool = False
    """Its script has ended, and the end record was examined."""
    device_version: int = 0
    hyper: ToldText = field(default_factory=ToldText)
    settings: ToldText = field(default_factory=ToldText)
    answers_version: int = 0
    answers: dict[AttemptId, Answer] = field(default_factory=dict)
    """Answers of this worker that were seen and reported."""
    foreign_values_told: bool = False
    """That it ignored foreign values in its job's store was reported."""
    copy_trouble: str = ""
    """Why no other node has a copy of its newest state in memory, if one should."""
    saves: Saves = field(default_factory=Saves)
    """What has been reported about its checkpoints."""

    @property
    def event_stem(self) -> str:
        """Beginning of the ids of its events: the same after a restart of the agent, unique per process."""
        ref = self.ref
        return f"{ref.job}.r{ref.rank}.g{ref.generation}.i{ref.incarnation}.{self.pid}-{self.start_ticks}"

    def signal_group(self, number: int) -> None:
        """Signal it and everything in its process group."""
        self._send(number, alone=False)

    def signal_alone(self, number: int) -> None:
        self._send(number, alone=True)

    def _send(self, number: int, *, alone: bool) -> None:
        process = self.process
        if process is None:
            return
        # If it is dead already, what it died of was not sent from here. It is sent anyway: a process whose
        # main thread has ended looks dead and is not.
        self.signalled = self.signalled or process.alive
        if alone:
            process.signal_alone(number)
        else:
            process.signal_group(number)

    @property
    def began_ns(self) -> int:
        """When it began, on the monotonic clock; the box knows better than an agent that adopted it."""
        if self.box is None:
            return self.started_ns
        try:
            return min(self.box.view.header(Header.MONOTONIC_NS), time.monotonic_ns())
        except BlackBoxDamaged:
            return self.started_ns


@dataclass(eq=False, kw_only=True)
class Store:
    """A store keeper process of this host."""

    ref: RendezvousRef
    address: RendezvousAddress
    process: Process
    note: ProcessNote
    stopping: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False, kw_only=True)
class Host:
    """Everything the agent's modules share."""

    home: Home
    node: str
    address: str
    session: str
    max_workers: int
    log_limit: int
    devices: Devices
    journal: Journal
    reporter: Reporter
    spawners: Spawners
    learned: LearnedSpawners
    lighthouses: Lighthouses
    kernel_log: KernelLog = field(default_factory=KernelLog)
    log_watch: LogWatch = field(default_factory=LogWatch)
    epoch: int = 0
    fleet_nodes: int = 0
    """How many nodes there are, as the last command said."""
    door: MemoryDoor | None = None
    """Where other agents bring and fetch states in memory, and ask for lighthouses."""
    copy_process: CopyProcess = field(default_factory=CopyProcess)
    """Where copies of states are sent and taken."""
    fetches: Fetches = field(default_factory=Fetches)
    """States in memory that are being brought here."""
    copies: bool = True
    """Whether copies of states in memory are sent and taken."""
    domain: str = ""
    """What fails together with this host."""
    workers: dict[WorkerRef, LocalWorker] = field(default_factory=dict)
    stores: dict[RendezvousRef, Store] = field(default_factory=dict)
    starting: dict[WorkerRef, asyncio.Event] = field(default_factory=dict)
    """Workers whose start is in progress; the event is set when the start has succeeded or failed."""
    readings: dict[tuple[str, str], DeviceReading] = field(default_factory=dict)
    """The newest measurement by device and source; kept by health.health_watch."""
    unwritten: dict[tuple[str, int], str] = field(default_factory=dict)
    """By job and rank: held values that the script of a worker which has ended never wrote."""
    mail_ns: int = 0
    """When mail was delivered or answered last, on the monotonic clock."""
    mail_came: asyncio.Event = field(default_factory=asyncio.Event)
    withdrawn: set[WorkerRef] = field(default_factory=set)
    """Workers to be stopped while they are still starting."""
    lingering: set[asyncio.Task[None]] = field(default_factory=set)
    """Each task waits for a process of a failed start that was killed but has not ended."""

    def log_file(self, job: str, rank: int) -> Path:
        return self.home.jobs_dir / job / f"rank-{rank}.log"

    def running(self) -> list[LocalWorker]:
        return [worker for worker in self.workers.values() if not worker.ending]

    def answer_agents(self) -> None:
        """Other agents have something to ask from now on."""
        if self.door is not None:
            self.door.open()

    def inventory(self) -> Inventory:
        # Also workers whose exit is reported: the report may not be in the stream yet.
        ending = [w for w in self.workers.values() if w.ending]
        return Inventory(
            hostname=socket.gethostname(),
            address=self.address,
            boot_id=f"{boot_id():032x}",
            home=self.journal.installation(),
            max_workers=self.max_workers,
            devices=self.devices.all(),
            workers=tuple(LiveWorker(w.ref, w.pid, w.devices) for w in self.running()),
            exits_to_come=tuple(w.ref for w in ending),
            stores=tuple(s.ref for s in self.stores.values() if not s.gone.is_set()),
            highest_epoch=self.epoch,
            memory_port=self.door.port if self.door is not None and self.copies else 0,
            agents_port=self.door.port if self.door is not None else 0,
            domain=self.domain,
            version=__version__,
        )
