"""What the API needs from the control service, as a protocol. The weaver fulfils it without knowing.

Every method raises LoomError subclasses only: NotFound, Conflict, UsageError, BusUnavailable, TimedOut.
"""

from __future__ import annotations

from typing import Protocol

from torchloom.model.fleet import Fleet
from torchloom.model.job import JobSpec
from torchloom.model.messages import BoxReading, LogPiece, WorkerPulse


class Control(Protocol):
    @property
    def fleet(self) -> Fleet:
        """The current state. Read only: whoever changes it breaks replay."""
        ...

    @property
    def active(self) -> bool:
        """Whether this service holds the lease and acts."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it is connected and has caught up with the stream."""
        ...

    def pulse(self, job: str) -> dict[int, WorkerPulse]:
        """The newest telemetry by rank, of the current generation only."""
        ...

    def node_seen(self, node: str) -> float | None:
        """Seconds since the node's last heartbeat; None if there was none."""
        ...

    async def submit(self, job: str | None, spec: JobSpec, env: dict[str, str], by: str) -> str:
        """Accept a job and return its id."""
        ...

    async def stop(self, job: str, by: str, kill: bool = False, grace_s: float | None = None) -> None: ...

    async def delete(self, job: str, by: str) -> None: ...

    async def read_log(self, job: str, rank: int, offset: int, max_bytes: int) -> LogPiece: ...

    async def read_box(self, job: str, rank: int) -> BoxReading: ...

    async def changed(self, after_seq: int, timeout_s: float) -> int:
        """Wait until `fleet.seq` is greater than `after_seq`, or the time is up; return `fleet.seq`."""
        ...
