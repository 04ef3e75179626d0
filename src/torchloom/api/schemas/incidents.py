"""Schemas of what a detector said: the finding, the evidence by rank, and an incident with all of it."""

from __future__ import annotations

from pydantic import BaseModel

from torchloom.api.schemas.bodies import ExitView, IncidentView
from torchloom.api.schemas.links import LinkMatrixView


class FactView(BaseModel):
    """One fact about one rank that the conclusion rests on."""

    rank: int
    says: str


class FindingView(BaseModel):
    ranks: list[int]
    """The ranks to blame; empty when the evidence names none."""
    node: str
    confidence: float
    certain: bool
    certainty: str
    """Why it is certain, or what evidence is missing."""
    lasting_s: float
    waiting: list[int]
    """Ranks held up by it."""
    facts: list[FactView]
    inputs: dict[str, float | str | None]
    """The numbers that were compared, thresholds included; null for one that is not finite."""


class RankEvidenceView(BaseModel):
    """One rank as its agent saw it when something was suspected."""

    rank: int
    node: str
    state: str
    """One letter of /proc: R, S, D, T (stopped), …"""
    phase: str
    steps: int
    doing: str
    location: str
    """The innermost frame of the user's own code."""
    stack: list[str]
    """Innermost frame first."""
    gil: str
    """Another thread that holds the GIL, and where."""
    collectives: list[str]
    """The newest, oldest first."""
    log_tail: list[str]


class WitnessView(BaseModel):
    """What torch's Flight Recorder said about a hang, beside the detector."""

    agrees: bool
    """It blames the same ranks."""
    sentence: str
    lines: list[str]
    """One for each rank that answered."""


class IncidentDetail(IncidentView):
    exits: list[ExitView]
    finding: FindingView | None
    witness: WitnessView | None
    evidence: list[RankEvidenceView]
    links: LinkMatrixView | None
    """The link measurement that it triggered."""
    goodput_before: float | None
    goodput_after: float | None
