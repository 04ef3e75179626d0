"""What a user asks for: the specification of a job."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from torchloom.model.policy import Policy
from torchloom.model.quorum import ReplicaSeat

MAX_WORKERS = 16_384
"""Largest world size that is accepted at all."""

SpawnMode = Literal["warm", "cold"]


class Program(Struct, frozen=True):
    """What each worker runs."""

    kind: Literal["script", "module", "command"]
    target: str
    """Path of the script, dotted module name, or the executable."""
    args: tuple[str, ...] = ()


class RestartLimits(Struct, frozen=True):
    """How often and how fast a job may be restarted."""

    max_restarts: int = 10
    """Restarts in the life of the job."""
    max_restarts_per_worker: int = 10
    """Restarts that the same rank may cause."""
    max_fruitless: int = 3
    """Restarts in a row without real progress; the one after that gives up."""
    progress_steps: int = 20
    """Completed steps that count as real progress …"""
    progress_s: float = 60.0
    """… or seconds of running."""
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 30.0
    jitter: float = 0.25
    """Share by which a delay is spread around its value."""


class HangLimits(Struct, frozen=True):
    """When a hang is reported, and when it is acted upon. None: learned from the job itself."""

    heartbeat_timeout_s: float | None = None
    hang_report_s: float | None = None
    hang_act_s: float | None = None


class CheckpointSettings(Struct, frozen=True):
    """Where and how often the job saves; its workers read it as CHECKPOINT_DIR and CHECKPOINT_EVERY."""

    directory: str = ""
    every: int | None = None
    """Steps between two checkpoints."""


class JobSpec(Struct, frozen=True, kw_only=True):
    """A job: which program, how many workers, and within which limits it may be recovered."""

    program: Program
    cwd: str
    workers_per_node: int = 1
    nodes: int = 1
    replicas: int = 1
    interpreter: str = ""
    """Python of the job; empty means the agent's own."""
    spawn: SpawnMode = "warm"
    preload: tuple[str, ...] = ()
    """Modules that a warm spawner imports in addition to torch."""
    restarts: RestartLimits = RestartLimits()
    stop_grace_s: float = 10.0
    """Time a worker has between SIGTERM and SIGKILL."""
    pin_cores: bool = False
    """Give each worker its own share of the node's cores."""
    expected_steps: int | None = None
    """Known end of the job in steps, for the ETA only."""
    env_names: tuple[str, ...] = ()
    """Names of the job's environment variables. The values are kept apart and never shown."""
    env_withheld: tuple[str, ...] = ()
    """Names of variables that were set where the job was submitted from, and that it was not given."""
    labels: dict[str, str] = {}
    max_steps: int | None = None
    """The job's workers read it as MAX_STEPS; ETA and progress count towards it."""
    min_workers: int | None = None
    """Smallest and largest world the owner would accept; None: only the one asked for. With a smallest one
    the job starts with fewer workers when there is no room for all (core/placement/place.py)."""
    max_workers: int | None = None
    standby: int = 0
    """Spare places, each for one node's share of workers, that are kept free on other nodes."""
    limits: HangLimits = HangLimits()
    checkpoint: CheckpointSettings = CheckpointSettings()
    policy: Policy = Policy()
    log_dir: str = ""
    """Where each host keeps the workers' output, instead of in its own directory for jobs."""
    replica: ReplicaSeat | None = None
    """Set if the job is one replica of a torchft job."""

    @property
    def world_size(self) -> int:
        return self.workers_per_node * self.nodes


class Accepted(Struct, frozen=True):
    """The answer to a submission."""

    job: str
    created: bool
    """False: the same request made it before."""
