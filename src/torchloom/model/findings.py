"""A finding: what a detector concluded, about which ranks, from what evidence, how confidently. No behaviour.

A finding reports; it never asks for an action. `certain` and `may_act` carry the two separate limits: a
detector may report something long before anybody may act on it.
"""

from __future__ import annotations

from msgspec import Struct

from torchloom.model.device_faults import Xid
from torchloom.model.finding_kinds import TRAITS, FindingKind, Traits


class Evidence(Struct, frozen=True, gc=False):
    """One fact about one rank that the conclusion rests on."""

    rank: int
    says: str


class RankEvidence(Struct, frozen=True, kw_only=True):
    """One rank as its agent saw it when a detector suspected something."""

    rank: int
    node: str
    state: str = ""
    """One letter of /proc."""
    phase: str = ""
    steps: int = 0
    doing: str = ""
    """Its last recorded activity, in words."""
    location: str = ""
    stack: tuple[str, ...] = ()
    """Of its main thread, innermost frame first."""
    gil: str = ""
    """Another thread that holds the GIL, and where."""
    collectives: tuple[str, ...] = ()
    """The newest, oldest first, in words."""
    log_tail: tuple[str, ...] = ()
    xids: tuple[Xid, ...] = ()
    """What the device's driver has reported lately, of a rank that is suspected."""


class Finding(Struct, frozen=True, kw_only=True, gc=False):
    """A conclusion with everything needed to show it, to record it and to check it again."""

    kind: FindingKind
    ranks: tuple[int, ...]
    """The ranks to blame, ascending; empty when the evidence names none."""
    node: str = ""
    """Where they are, when it is one node."""
    sentence: str
    confidence: float
    """Between 0 and 1: how likely the kind and the ranks are right."""
    certain: bool = False
    """Nothing benign looks like this."""
    certainty: str = ""
    """Why it is certain, or what evidence is missing."""
    may_act: bool = False
    """Certain, or unchanged for so long that the job's own limit for acting has passed."""
    lasting_s: float = 0.0
    waiting: tuple[int, ...] = ()
    """Ranks held up by it."""
    ask: tuple[int, ...] = ()
    """Ranks whose stack, process samples and collectives would make the picture complete."""
    evidence: tuple[Evidence, ...] = ()
    inputs: dict[str, float | str] = {}
    """The numbers that were compared, thresholds included."""

    @property
    def traits(self) -> Traits:
        return TRAITS[self.kind]
