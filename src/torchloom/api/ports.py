"""What the API needs from the control service, as a protocol. The weaver fulfils it without knowing.

Every method raises LoomError subclasses only: NotFound, Conflict, UsageError, BusUnavailable, TimedOut,
and StorageFailed where a checkpoint store is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torchloom.core.devices.preview import AffectedJob
from torchloom.core.history.job_history import History
from torchloom.model.admission import JoinAnswer
from torchloom.model.checkpoints import CheckpointEntry
from torchloom.model.device_wear import TestResult
from torchloom.model.devices import DeviceMark, DevicePolicy, DeviceReading, HealthReport
from torchloom.model.faults import Fault
from torchloom.model.fleet import Fleet
from torchloom.model.incidents import Incident
from torchloom.model.job import Accepted, JobSpec
from torchloom.model.messages import (
    BoxReading,
    CheckpointAnswer,
    CheckpointVerb,
    LogPiece,
    WeaverPresence,
    WorkerPulse,
)
from torchloom.model.notice import Notice
from torchloom.model.replayed import Replay
from torchloom.model.steering import ChangePlan, ConfigChoice, KnownConfig, Mode
from torchloom.model.windows import RankWindow


class DeviceControl(Protocol):
    """What is known of devices, and what people and monitors say of them."""

    def find(self, name: str) -> str:
        """The id of a device, named by its id or a unique beginning of it; NotFound names near ones."""
        ...

    def readings(self, device: str) -> list[DeviceReading]:
        """The newest measurements of a device, one for each source."""
        ...

    def health_dropped(self) -> int:
        """Changes of devices' health that came faster than they are recorded."""
        ...

    async def mark(
        self, name: str, mark: DeviceMark, by: str, why: str = "", *, force: bool = False, dry_run: bool
    ) -> tuple[str, list[AffectedJob]]:
        """Take a device out of use or return it; its id, and what that does to the jobs on it."""
        ...

    async def health(self, name: str, report: HealthReport, reading: DeviceReading | None, by: str) -> bool:
        """Take in what a monitor says of a device; whether that was recorded."""
        ...

    async def test(self, name: str, by: str, why: str, *, then_return: bool) -> str:
        """Have a device tested, and returned to use if it passes; its id."""
        ...

    async def import_tests(
        self, results: Sequence[tuple[str, int | None, TestResult]], by: str
    ) -> tuple[list[str], list[str]]:
        """Record results of tests that ran elsewhere; the devices, and the places that nobody knows."""
        ...

    async def set_policy(self, policy: DevicePolicy, by: str) -> None:
        """Set what is done when the health of a device gets worse."""
        ...


class JoinControl(Protocol):
    """Hosts that join a cluster. All of it is a Conflict where there is none."""

    def authorities(self) -> str:
        """The certificates (PEM) that prove servers of this cluster."""
        ...

    def addresses(self) -> tuple[str, ...]:
        """Where hosts can join."""
        ...

    async def make_token(self, by: str, valid_s: float, hosts: int, node: str) -> str:
        """A new join token, which is shown once."""
        ...

    async def admit(self, token: str, node: str, key: str) -> JoinAnswer:
        """Admit a host; NotAllowed if the token does not allow it."""
        ...

    async def admit_pod(self, token: str, key: str) -> tuple[str, JoinAnswer]:
        """Admit the pod whose service account token this is; its name as a node, and what it needs."""
        ...

    def pod_of(self, token: str) -> str:
        """The node whose pod this token of the API was made for, while it is admitted; else empty."""
        ...

    async def revoke(self, node: str, by: str) -> None:
        """Take back a host's credential. Returns when the bus refuses it."""
        ...


class Control(Protocol):
    @property
    def fleet(self) -> Fleet:
        """The current state. Read only: changing it breaks replay."""
        ...

    @property
    def active(self) -> bool:
        """Whether this service holds the lease and acts."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it is connected and has caught up with the stream."""
        ...

    @property
    def blocked(self) -> str:
        """Why it can read the stream no further and never leads again; empty: it can."""
        ...

    def weavers(self) -> list[WeaverPresence]:
        """This control service and the others that announced themselves lately."""
        ...

    @property
    def refusals(self) -> dict[str, str]:
        """Why the agent of a node refused the newest command as too new for it."""
        ...

    def troubles(self) -> list[str]:
        """What keeps the control plane from acting, in sentences; none when all is well."""
        ...

    @property
    def dropped(self) -> dict[str, int]:
        """Messages of agents that sent more than their share, by node."""
        ...

    async def replay(self, incident: str) -> Replay:
        """The events around an incident of a job, applied to the core again, and what came of each."""
        ...

    def disturbances(self) -> list[Incident]:
        """Open incidents of the control plane itself, which are not in the fleet yet."""
        ...

    def stuck_s(self) -> float:
        """For how long the bus has answered but stored nothing."""
        ...

    def pulse(self, job: str) -> dict[int, WorkerPulse]:
        """The newest telemetry by rank, of the current generation only."""
        ...

    def windows(self, job: str) -> list[RankWindow]:
        """What the agents have just seen of a job's ranks, as far as it is fresh."""
        ...

    async def history(self, job: str) -> History:
        """A job's recorded history; empty if nothing is recorded."""
        ...

    def node_seen(self, node: str) -> float | None:
        """Seconds since the node's last heartbeat; None if there was none."""
        ...

    async def submit(
        self,
        job: str | None,
        spec: JobSpec,
        env: dict[str, str],
        by: str,
        *,
        key: str = "",
        digest: str = "",
        queue: bool | None = None,
    ) -> Accepted:
        """Accept a job, or return the one that the same `key` made before."""
        ...

    async def stop(
        self, job: str, by: str, kill: bool = False, grace_s: float | None = None, signal: str = ""
    ) -> None: ...

    async def delete(self, job: str, by: str, keep_logs: bool = False, keep_checkpoints: bool = True) -> None:
        """Forget an ended job. With checkpoints that cannot be removed it fails and the job stays."""
        ...

    async def read_log(
        self,
        job: str,
        rank: int,
        offset: int,
        max_bytes: int,
        since_ns: int = 0,
        unfinished: bool = False,
    ) -> LogPiece:
        """A piece of a rank's log; `unfinished`: also the line that is being written."""
        ...

    async def read_box(self, job: str, rank: int, newest: int = 32) -> BoxReading:
        """A rank's black box with its newest steps and collectives."""
        ...

    async def checkpoints(self, job: str, verb: CheckpointVerb, which: str = "") -> CheckpointAnswer:
        """Query or change the store of a job's checkpoints; every action but `list` names one checkpoint."""
        ...

    async def restore(
        self, job: str, step: int, by: str, *, config: ConfigChoice | None = None, operation: str = ""
    ) -> CheckpointEntry:
        """Go back to the checkpoint of a step, if it exists and is complete; returns that checkpoint.

        `config` must be chosen when settings were changed after that step. `operation` names the operation by
        which a running job goes back without a restart; a job that has to restart has none.
        """
        ...

    # Steering. `operation` is an id that the caller chose; one that the job knows already changes nothing.

    def config(self, job: str) -> KnownConfig: ...

    async def change(
        self,
        job: str,
        values: Mapping[str, object],
        by: str,
        *,
        why: str = "",
        at_step: int | None = None,
        mode: Mode = "hold",
        dry_run: bool = False,
        operation: str = "",
    ) -> ChangePlan:
        """Check a change and request it; `at_step` is a training step if the script reports them."""
        ...

    async def revert(
        self,
        job: str,
        version: int | None,
        by: str,
        *,
        why: str = "",
        dry_run: bool = False,
        operation: str = "",
    ) -> ChangePlan:
        """Request the change that restores the settings of a version; None: of the last but one."""
        ...

    async def pause(self, job: str, by: str, why: str = "", operation: str = "") -> str:
        """The id of the operation, as with the two that follow."""
        ...

    async def resume(self, job: str, by: str, why: str = "", operation: str = "") -> str: ...

    async def checkpoint_now(self, job: str, by: str, why: str = "", operation: str = "") -> str: ...

    async def probe(self, job: str, by: str, *, within_s: float, why: str = "", operation: str = "") -> str:
        """Let all ranks measure their links at one step, for at most the given time."""
        ...

    async def cancel_change(self, job: str, operation: str, by: str) -> None: ...

    async def scale(self, job: str, workers: int, by: str, *, dry_run: bool = False) -> None:
        """Continue with another number of workers, by a restart at a step boundary; Conflict if it cannot."""
        ...

    async def restart(self, job: str, by: str, max_steps: int | None = None) -> None:
        """Begin again from the newest checkpoint, also a job that has ended; Conflict if it cannot."""
        ...

    async def node_gone(self, node: str, by: str) -> None:
        """Record a person's word that the host of a node is gone; Conflict while the node is reachable."""
        ...

    async def node_drained(self, node: str, by: str, why: str, *, keep: bool, force: bool) -> None:
        """Place no new workers on a node. Its workers are saved and moved; with `keep` none move, with
        `force` also those that cannot be saved."""
        ...

    async def node_opened(self, node: str, by: str) -> None:
        """Allow workers on a drained node again."""
        ...

    @property
    def devices(self) -> DeviceControl: ...

    @property
    def admission(self) -> JoinControl: ...

    async def inject(
        self, job: str, ranks: tuple[int, ...], fault: Fault, by: str
    ) -> tuple[str, tuple[int, ...]]:
        """Inject a fault into these workers (none: all); returns the injection's name and its targets."""
        ...

    async def changed(self, after_seq: int, timeout_s: float) -> int:
        """Wait until `fleet.seq` is greater than `after_seq`, or the time is up; return `fleet.seq`."""
        ...

    def notices(self, after_seq: int, most: int) -> list[Notice] | None:
        """Notices after a place in the stream, oldest first; None when they are not in memory."""
        ...

    def notices_from(self) -> int:
        """The place after which `notices` can answer without another `reach_back`."""
        ...

    async def reach_back(self, after_seq: int) -> bool:
        """Load what `notices` needs to answer for that place; False if the stream no longer holds it."""
        ...
