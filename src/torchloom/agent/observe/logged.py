"""What a script has logged, out of the black box: the quorum it trains in, the peaks and broken values of its
metrics. Reads what was parsed already and judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from torchloom.model.windows import Broken, QuorumFacts


def quorum(told: Mapping[str, float]) -> QuorumFacts | None:
    """What integrations/torchft.py logs with every commit."""
    names = ("torchft/quorum", "torchft/replicas", "torchft/quorum_steps", "torchft/quorum_wait_s")
    found = [told[name] for name in names if name in told and isfinite(told[name])]
    if len(found) < len(names):
        return None
    return QuorumFacts(int(found[0]), int(found[1]), int(found[2]), found[3])


def peaks(found: object) -> dict[str, tuple[int, float]]:
    told = found.get("peaks") if isinstance(found, dict) else None
    made: dict[str, tuple[int, float]] = {}
    for name, peak in told.items() if isinstance(told, dict) else ():
        match peak:
            case [int(step), int(value) | float(value)]:
                made[str(name)] = (step, float(value))
    return made


def broken(found: object) -> Broken | None:
    match found:
        case {"broken": [int(run), int(step), str(name), str(value)]}:
            return Broken(run, step, name, value)
    return None
