"""Findings for stories of the core: a hang and what differs from it."""

from __future__ import annotations

from torchloom.model.events import FindingMade
from torchloom.model.findings import Finding


def hang(**change: object) -> Finding:
    fields: dict[str, object] = {
        "kind": "hang", "ranks": (1,), "node": "a", "sentence": "rank 1 has not entered", "confidence": 0.9,
        "lasting_s": 2.5, "waiting": (0,), "inputs": {"act_s": 600.0}, "certainty": "its process is at work",
    }  # fmt: skip
    return Finding(**{**fields, **change})  # type: ignore[arg-type]


CERTAIN = hang(certain=True, may_act=True, certainty="its process is stopped", confidence=0.99)


LASTING = hang(may_act=True, lasting_s=601.0)


SLOW = hang(kind="compute-slow", sentence="rank 1 takes 1.5× the time", lasting_s=0.0, waiting=())


NAN = hang(kind="not-a-number", sentence="loss is not a finite number", certain=True, ranks=())


def made(finding: Finding, generation: int = 1, steps: int = 50, **more: object) -> FindingMade:
    return FindingMade(job="j", generation=generation, finding=finding, steps=steps, **more)  # type: ignore[arg-type]
