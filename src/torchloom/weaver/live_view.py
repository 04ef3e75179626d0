"""The live view: the newest telemetry of every worker, and the last heartbeat of each node. Lossy.

Owns no decision. What the core decides by it (a node's silence, the progress of ranks, a step that is near)
is first published as an event with the numbers in it, so a replay decides the same.
"""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.model.devices import DeviceReading
from torchloom.model.events import WorkerProgress
from torchloom.model.fleet import Fleet
from torchloom.model.messages import Telemetry, WorkerPulse
from torchloom.model.worker import WorkerRef

STOOD_STILL_S = 1.0


class LiveView:
    """Keeps what agents publish. Time comes as an argument so that tests need no clock."""

    def __init__(self) -> None:
        self._pulses: dict[str, dict[int, WorkerPulse]] = {}
        self.readings: dict[str, dict[str, DeviceReading]] = {}
        """The newest measurements by device and source."""
        self.last_heard_s: dict[str, float] = {}
        """Time of a node's last heartbeat, or when nobody could receive one: silence counts from then."""
        self.spoke_s: dict[str, float] = {}
        """When this weaver itself received the last heartbeat."""
        self.expected_s = 0.0
        """Since when this weaver decides by it: heartbeats that others received before are not known."""
        self._listened_s = 0.0

    def hear(self, fleet: Fleet, telemetry: Telemetry, now_s: float) -> None:
        """Keep what a node publishes about its own workers; ignore what it says about others."""
        self.listen(now_s)
        self.note(telemetry.node, now_s)
        for reading in telemetry.devices:
            known = fleet.devices.get(reading.device)
            own = known is not None and known.node == telemetry.node
            if own or reading.device == f"host-{telemetry.node}":
                self.readings.setdefault(reading.device, {})[reading.source] = reading
        for pulse in telemetry.workers:
            if not _is_on(fleet, pulse.ref, telemetry.node):
                continue
            ranks = self._pulses.setdefault(pulse.ref.job, {})
            before = ranks.get(pulse.ref.rank)
            if before is not None and before.ref.incarnation > pulse.ref.incarnation:
                continue
            if before is not None and before.ref == pulse.ref:
                pulse = replace(
                    pulse,
                    hyperparameters=pulse.hyperparameters or before.hyperparameters,
                    settings=pulse.settings or before.settings,
                )
            ranks[pulse.ref.rank] = pulse

    def note(self, node: str, now_s: float) -> None:
        """A heartbeat of the node arrived just now."""
        self.last_heard_s[node] = self.spoke_s[node] = now_s

    def pulses(self, fleet: Fleet, job: str) -> dict[int, WorkerPulse]:
        """Newest pulse by rank, of the current generation only."""
        known = fleet.jobs.get(job)
        if known is None:
            return {}
        return {
            rank: pulse
            for rank, pulse in sorted(self._pulses.get(job, {}).items())
            if pulse.ref.generation == known.generation
        }

    def progress(self, fleet: Fleet, job: str) -> tuple[WorkerProgress, ...]:
        return tuple(
            WorkerProgress(rank, pulse.steps, pulse.step_s) for rank, pulse in self.pulses(fleet, job).items()
        )

    def expect(self, fleet: Fleet, now_s: float) -> None:
        """Start the clock for nodes without a heartbeat so far, so that one that died unseen is noticed."""
        self.expected_s = now_s
        for node in fleet.nodes:
            self.last_heard_s.setdefault(node, now_s)

    def listen(self, now_s: float) -> None:
        """Called whenever the weaver runs. If two calls are far apart, the weaver was paused or cut off
        itself: heartbeats missed meanwhile do not count as a node's silence."""
        missed_s, self._listened_s = now_s - self._listened_s, now_s
        if missed_s > STOOD_STILL_S:
            for node, heard_s in self.last_heard_s.items():
                self.last_heard_s[node] = min(now_s, heard_s + missed_s)

    def forget(self, job: str) -> None:
        self._pulses.pop(job, None)


def _is_on(fleet: Fleet, ref: WorkerRef, node: str) -> bool:
    """Whether the worker is placed on this node. One that is not known yet is reported again in a moment."""
    job = fleet.jobs.get(ref.job)
    if job is None or not 0 <= ref.rank < len(job.workers):
        return False
    worker = job.workers[ref.rank]
    return worker.ref == ref and worker.node == node
