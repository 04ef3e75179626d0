"""The schema of a policy, as a request carries it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from torchloom.model.finding_kinds import FindingKind
from torchloom.model.policy import Action, Level


class PolicyBody(BaseModel):
    """What to do about findings, by kind and by confidence; the rest follows the defaults."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dry_run: bool = False
    """Only record the action that would have been taken."""
    restarts_per_hour: int = Field(default=6, ge=0, le=10_000)
    """Restarts and moves because of findings; restarts after a crash have the job's own budget."""
    rollbacks_per_hour: int = Field(default=2, ge=0, le=10_000)
    pauses_per_hour: int = Field(default=12, ge=0, le=10_000)
    rebalances_per_hour: int = Field(default=6, ge=0, le=10_000)
    leave_outs_per_hour: int = Field(default=6, ge=0, le=10_000)
    """Replicas of a torchft job that begin to be left out; trials do not count."""
    take_back_s: float = Field(default=60.0, ge=0, le=86_400)
    """After how long a replica that is left out is tried again; twice as long after every failed trial."""
    cooldown_s: float = Field(default=30.0, ge=0, le=86_400)
    """Least time between two actions, pauses aside."""
    skip_batches: int = Field(default=3, ge=0, le=10_000)
    """Global batches that a rollback leaves out at least."""
    self_fence_s: float | None = Field(default=None, ge=5, le=86_400)
    """A host that has lost the control plane for this long kills this job's workers; if missing, never."""
    restart_cost_s: float | None = Field(default=None, ge=0, le=86_400)
    """What a restart costs, to weigh slowness against; if missing, as measured in the job."""
    probe_links: bool = True
    """Measure the links between the ranks when transfers have become slow."""
    probe_every_s: float = Field(default=600.0, ge=0, le=86_400)
    """At most once within this time."""
    rules: dict[FindingKind, dict[Level, Action]] = {}
