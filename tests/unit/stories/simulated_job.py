"""A simulated job under all detectors."""

from __future__ import annotations

from torchloom.chaos.simulator import Simulation
from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.model.findings import Finding


def live(sim: Simulation, until_s: float, every_s: float = 1.0) -> list[Finding]:
    """Everything said, each kind and rank once per certainty."""
    memory, now = Memory(), 0.0
    said: dict[tuple[object, ...], Finding] = {}
    while now < until_s:
        now += every_s
        sim.run_until(now)
        memory, found = judge(sim.windows(), memory, AllLimits())
        for finding in found:
            sim.ask(finding.ask)
            said.setdefault((finding.kind, finding.ranks, finding.certain), finding)
    return list(said.values())
