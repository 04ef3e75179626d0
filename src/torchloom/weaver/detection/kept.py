"""What is kept of ranks that have ended well while others still run."""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.model.fleet import Worker
from torchloom.model.windows import ProcessFacts, RankWindow


def left_behind(window: RankWindow, worker: Worker) -> RankWindow:
    """The last that was seen of a rank that has ended well: others may wait for it in vain."""
    how = f"exited with code 0 after {worker.steps} step{'s' * (worker.steps != 1)}"
    return replace(window, left=how, process=ProcessFacts(state="X"), collectives=(), phase="none")
