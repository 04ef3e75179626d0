"""What the black boxes of the dead say together: ranks that disagreed about an operation and died of it.

Some backends end the process at once when sizes do not match, sooner than any detector looks. Then every end
looks like a crash of its own, and only their last collectives side by side tell the cause. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from torchloom.core.detect.desync import desync
from torchloom.core.detect.thresholds import Pace, StuckLimits
from torchloom.core.detect.window import Collective, RankWindow
from torchloom.core.recovery.culprit import verdict
from torchloom.model.findings import Finding
from torchloom.model.incidents import ExitReport, Incident, Verdict


def disagreement(exits: Sequence[ExitReport]) -> Finding | None:
    """The desync of which these workers died, if it was one. Who was ended by us tells his part, too."""
    windows = [
        RankWindow(
            rank=report.rank,
            node=report.node,
            device=report.devices[0].device if report.devices else "",
            taken_ns=0,
            steps_done=report.steps,
            collectives=tuple(_as_left(c) for c in report.collectives),
        )
        for report in exits
        if report.collectives
    ]
    found = desync(windows, Pace(), StuckLimits()) if len(windows) > 1 else []
    if not found:
        return None
    # As they would be after a snapshot: numbers there are floats.
    inputs = {k: v if isinstance(v, str) else float(v) for k, v in found[0].inputs.items()}
    return replace(found[0], inputs={**inputs, "ends": float(len(windows))})


def tell_disagreement(incident: Incident) -> bool:
    """Make a crash that was a desync one, and say it better when more ends are known; whether it did."""
    known = incident.finding
    if incident.kind != "crash" if known is None else "ends" not in known.inputs:
        return False
    finding = disagreement(incident.exits)
    if finding is None or (known is not None and finding.sentence == known.sentence):
        return False
    incident.kind, incident.finding = "desync", finding
    incident.culprit = finding.ranks[0] if len(finding.ranks) == 1 else None
    incident.judged = Verdict(cause=finding.sentence, then=verdict(incident.exits[0]))
    return True


def _as_left(collective: Collective) -> Collective:
    """What was not over when the process ended never will be."""
    return collective if collective.finished_ns else replace(collective, failed=True)
