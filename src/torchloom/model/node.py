"""What an agent reports about its host."""

from __future__ import annotations

from msgspec import Struct

from torchloom.model.worker import DeviceUse, WorkerRef


class RendezvousRef(Struct, frozen=True):
    """The c10d store of one generation of a job."""

    job: str
    generation: int


class RendezvousAddress(Struct, frozen=True):
    """Where the workers of a generation meet."""

    host: str
    port: int
    lighthouse: str = ""
    """HOST:PORT of the generation's own door at the lighthouse of its torchft job; empty: it has none."""
    news: str = ""
    """HOST:PORT where that lighthouse reports which replicas have ended."""


class LiveWorker(Struct, frozen=True):
    """A worker process that runs now."""

    ref: WorkerRef
    pid: int
    devices: tuple[DeviceUse, ...] = ()


class HostId(Struct, frozen=True):
    """Which host an agent serves, as far as the agent knows."""

    hostname: str
    boot_id: str
    home: str


class NodeClock(Struct, frozen=True, array_like=True):
    """What a node's wall clock shows, against the clock that stamps the stream."""

    behind_ns: int
    """To be added to a time of the node; negative when it is ahead."""
    at_ns: int
    """When that was seen, by the stream's clock."""


class Inventory(Struct, frozen=True, kw_only=True):
    """Everything an agent knows about its host, sent when it starts and whenever it is connected again."""

    hostname: str
    address: str
    """Address at which other nodes reach this one; 127.0.0.1 on a single machine."""
    boot_id: str
    home: str = ""
    """Names the installation (LOOM_HOME) that the agent serves, for good."""
    max_workers: int
    devices: tuple[DeviceUse, ...] = ()
    workers: tuple[LiveWorker, ...] = ()
    exits_to_come: tuple[WorkerRef, ...] = ()
    """Workers that have ended and whose exit events follow."""
    stores: tuple[RendezvousRef, ...] = ()
    highest_epoch: int = 0
    memory_port: int = 0
    """Where other agents send and take states in memory; 0: nowhere."""
    agents_port: int = 0
    """Where other agents ask for the port of a lighthouse; 0: nowhere."""
    domain: str = ""
    """What fails together with this host (a rack, say), as LOOM_FAILURE_DOMAIN names it."""
    version: str = ""
    """Of the agent's torchloom; empty from one that does not report it."""
