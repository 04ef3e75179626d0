"""What is kept of windows between two looks: steps and hashes seen before, and ranks that have ended well."""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.model.fleet import Worker
from torchloom.model.windows import PartHash, ProcessFacts, RankWindow, StepTimes

STEPS_KEPT = 32
HASHES_KEPT = 64


def joined_steps(before: RankWindow, now: RankWindow) -> tuple[StepTimes, ...]:
    """Windows carry what is new: the steps before it are still worth looking at."""
    if not now.steps:
        return before.steps
    first = now.steps[0].step
    return (*(s for s in before.steps if s.step < first), *now.steps)[-STEPS_KEPT:]


def joined_hashes(before: RankWindow, now: RankWindow) -> tuple[PartHash, ...]:
    """The same for hashes: ranks are looked at at different times, and only equal steps can be compared."""
    if not now.hashes:
        return before.hashes
    fresh = {(h.step, h.part) for h in now.hashes}
    kept = [h for h in before.hashes if (h.step, h.part) not in fresh]
    return tuple(sorted([*kept, *now.hashes], key=lambda h: (h.step, h.part)))[-HASHES_KEPT:]


def left_behind(window: RankWindow, worker: Worker) -> RankWindow:
    """The last that was seen of a rank that has ended well: others may wait for it in vain."""
    how = f"exited with code 0 after {worker.steps} step{'s' * (worker.steps != 1)}"
    return replace(window, left=how, process=ProcessFacts(state="X"), collectives=(), phase="none")
