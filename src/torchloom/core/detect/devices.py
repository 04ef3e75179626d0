"""Hangs on devices: all ranks have enqueued a collective, and some device never reaches it.

Enqueued is not arrived. Where some devices have reached the collective and others have not, those that have
not hold it up: they are stuck in a kernel, or lost. Where all have reached it, it is the communication, which
hang.py reports. A rank that has not even enqueued it is absent, as on the host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from torchloom.core.detect import words
from torchloom.core.detect.board import DEVICE, WindowBoard
from torchloom.core.detect.certainty import may_act
from torchloom.core.detect.graph import CollectiveWait
from torchloom.core.detect.thresholds import Limit
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Evidence, Finding
from torchloom.model.windows import age_ns

_SHOWN = 32


def behind(
    wait: CollectiveWait, inside: Sequence[RankWindow], past: Sequence[RankWindow]
) -> list[RankWindow]:
    """Ranks that have enqueued the collective all wait in, and whose device failed or has not reached it.

    None if no device has reached it: then the cause came earlier and is not known.
    """
    if broken := failed(past) or failed(inside):
        return broken
    found = [w for w in inside if w.rank in wait.behind]
    return found if len(found) < len(inside) + len(past) else []


def any_stands(board: WindowBoard, least_s: float) -> bool:
    """Whether some device has stood at its oldest collective for so long, whatever else of the rank moves: a
    host that runs ahead, another stream, another thread."""
    if not board.marked(DEVICE):
        return False
    taken_ns, least_ns = board.taken_at_ns(), least_s * 1e9
    return any(
        inside[0].on_device and inside[0].under_way and age_ns(taken_ns[row], inside[0]) >= least_ns
        for row, inside in board.busy()
        if inside
    )


def failed(windows: Sequence[RankWindow]) -> list[RankWindow]:
    """Ranks whose device answers with an error."""
    return [w for w in windows if w.accelerator is not None and w.accelerator.state == "failed"]


def joined_by(finding: Finding, wait: CollectiveWait, by_rank: Mapping[int, RankWindow]) -> Finding:
    """Beside ranks that are absent, those whose device has not reached the collective for as long: once the
    others come, these do not. They are culprits, too, unless it is certain that the absent never come."""
    if not wait.behind or len(wait.behind) >= len(wait.ranks):
        return finding
    late_here = set(wait.behind) - set(finding.ranks)
    found = [by_rank[r] for r in wait.ranks if r in late_here]
    report_s = finding.inputs.get("report_s", 0.0)
    found = [w for w in found if w.accelerator and w.accelerator.quiet_ns / 1e9 >= float(report_s)]
    if not found:
        return finding
    late = {w.rank for w in found}
    device = "the device" if len(late) == 1 else "the devices"
    have = "has" if len(late) == 1 else "have"
    waiting = tuple(r for r in finding.waiting if r not in late)
    said = finding.sentence.removesuffix(words.then_waiting(finding.waiting))
    said = f"{said}; {device} of {words.ranks_text(late)} {have} not reached it either"
    sentence = said + words.then_waiting(waiting)
    if finding.certain:
        return replace(finding, sentence=sentence)
    ranks = tuple(sorted({*finding.ranks, *late}))
    return replace(
        finding,
        ranks=ranks,
        sentence=sentence,
        waiting=waiting,
        ask=ranks[:_SHOWN],
        evidence=(*finding.evidence, *(Evidence(w.rank, words.doing(w)) for w in found))[:_SHOWN],
    )


def blame(
    culprits: Sequence[RankWindow],
    held_up: Collection[int],
    wait: CollectiveWait,
    allowed: Limit,
) -> Finding:
    """One finding for all devices that have not reached it."""
    ranks = tuple(sorted(w.rank for w in culprits))
    waiting = tuple(sorted(set(held_up) - set(ranks)))
    broken = bool(failed(culprits))
    one = len(ranks) == 1
    clause = words.accelerators(culprits) or "what it runs instead is not known"
    did = f"{'has' if one else 'have'} enqueued {words.operation(wait.collective)}"
    reached = f"but {'its device has' if one else 'their devices have'} not reached it"
    if not any(r in wait.ranks or r in wait.beside for r in ranks):
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
