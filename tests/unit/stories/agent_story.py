"""A host of an agent with one worker and its black box, for the unit tests of the agent."""

from __future__ import annotations

from pathlib import Path

from torchloom.agent.health.known_gpus import look
from torchloom.agent.host import Host, LocalWorker
from torchloom.agent.journal import Journal
from torchloom.agent.lighthouse.keeper import Lighthouses
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.processes.learned_spawners import LearnedSpawners
from torchloom.agent.processes.spawners import Spawners
from torchloom.agent.reporting import Reporter
from torchloom.agent.tasks import Tasks
from torchloom.bus.memory import MemoryBus
from torchloom.home import Home
from torchloom.model.worker import WorkerRef
from torchloom.wire import blackbox
from torchloom.wire.blackbox import Header, View

REF = WorkerRef("j", 0, 1, 1)


def box(path: Path) -> ReadableBox:
    path.write_bytes(bytes(blackbox.SIZE))
    with path.open("r+b") as file:
        raw = bytearray(blackbox.SIZE)
        view = View(memoryview(raw))
        view.set_header(Header.MAGIC, blackbox.MAGIC)
        view.set_header(Header.LAYOUT, blackbox.LAYOUT_VERSION)
        view.set_header(Header.SIZE, blackbox.SIZE)
        file.write(raw)
    return ReadableBox.open(path)


def a_host(tmp_path: Path, bus: MemoryBus, made: ReadableBox) -> Host:
    home = Home(tmp_path / "home")
    spawners = Spawners(home, lambda _: False)
    host = Host(
        home=home,
        node="a",
        address="127.0.0.1",
        session="s",
        max_workers=4,
        log_limit=1000,
        devices=look("a"),
        journal=Journal(home),
        reporter=Reporter(bus, "a"),
        spawners=spawners,
        learned=LearnedSpawners(home, spawners, lambda _: False),
        lighthouses=Lighthouses(home, Tasks()),
    )
    log = tmp_path / "log"
    host.workers[REF] = LocalWorker(
        ref=REF, order="", pid=1, start_ticks=1, process=None, box=made, log=log, spawner=""
    )
    return host
