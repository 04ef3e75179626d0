"""The schema of a policy, as a request carries it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from torchloom.model.findings import FindingKind
from torchloom.model.policy import Action, Level


class PolicyBody(BaseModel):
    """What is done about findings, by kind and by how sure they are; the rest follows the defaults."""

    model_config = ConfigDict(extra="forbid", strict=True)

    dry_run: bool = False
    """Only note what would have been done."""
    restarts_per_hour: int = Field(default=6, ge=0, le=10_000)
    """Because of findings; restarts after a crash have the job's own budget."""
    cooldown_s: float = Field(default=30.0, ge=0, le=86_400)
    """Least time between two such restarts."""
    rules: dict[FindingKind, dict[Level, Action]] = {}
