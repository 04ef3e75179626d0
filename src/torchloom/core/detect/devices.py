"""Hangs on devices: all ranks have enqueued a collective, and some device never reaches it.

Enqueued is not arrived. Where some devices have reached the collective and others have not, those that have
not hold it up: they are stuck in a kernel, or lost. Where all have reached it, it is the communication, which
hang.py reports. A rank that has not even enqueued it is absent, as on the host.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchloom.core.detect import words
from torchloom.core.detect.certainty import may_act
from torchloom.core.detect.graph import CollectiveWait, blocking
from torchloom.core.detect.thresholds import Limit
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Evidence, Finding

_SHOWN = 32


def behind(inside: Sequence[RankWindow]) -> list[RankWindow]:
    """Ranks that have enqueued the collective all wait in, and whose device failed or has not reached it.

    None if no device has reached it: then the cause came earlier and is not known.
    """
    if broken := failed(inside):
        return broken
    found = [w for w in inside if (at := blocking(w)) is not None and at.approaching]
    return found if len(found) < len(inside) else []


def failed(windows: Sequence[RankWindow]) -> list[RankWindow]:
    """Ranks whose device answers with an error."""
    return [w for w in windows if w.accelerator is not None and w.accelerator.state == "failed"]


def blame(
    culprits: Sequence[RankWindow],
    inside: Sequence[RankWindow],
    wait: CollectiveWait,
    allowed: Limit,
) -> Finding:
    """One finding for all devices that have not reached it."""
    ranks = tuple(sorted(w.rank for w in culprits))
    blamed = set(ranks)
    waiting = tuple(sorted(w.rank for w in inside if w.rank not in blamed))
    broken = bool(failed(culprits))
    one = len(ranks) == 1
    clause = words.accelerator(culprits[0]) or "what it runs instead is not known"
    did = f"{'has' if one else 'have'} enqueued {words.operation(wait.collective)}"
    reached = f"but {'its device has' if one else 'their devices have'} not reached it"
    if not any(w.rank in blamed for w in inside):
        did = f"{'has' if one else 'have'} left {words.operation(wait.collective)}"
        reached = f"and {'its' if one else 'their'} part of it may not be sent"
    return Finding(
        kind="hang" if any(w.steps_done for w in culprits) else "no-progress",
        ranks=ranks,
        node=words.node_of(culprits),
        sentence=f"{words.whom(culprits)} {did}, {reached} for {words.lasting(wait.longest_s)}; "
        f"{clause}{words.then_waiting(waiting)}",
        confidence=0.99 if broken else 0.9,
        certain=broken,
        certainty=clause if broken else "a long kernel looks the same",
        may_act=broken or may_act(culprits, wait.longest_s, allowed.act_s),
        lasting_s=wait.longest_s,
        waiting=waiting,
        ask=ranks[:_SHOWN],
        evidence=tuple(Evidence(w.rank, words.doing(w)) for w in culprits[:_SHOWN]),
        inputs={
            "report_s": allowed.report_s,
            "act_s": allowed.act_s,
            "why": allowed.why,
            "operation": words.operation(wait.collective),
        },
    )
