"""Which of several exits was the cause and which were its consequences, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from torchloom.model.fleet import ExitReport


def blame(exits: Sequence[ExitReport]) -> tuple[int | None, list[ExitReport]]:
    """The culprit's rank and the reports with `secondary` set.

    A survivor that dies of a closed connection is secondary even if its process is gone first, because
    the culprit may still be finalising; the time of the exception decides before the time of the exit.
    """
    failed = [r for r in exits if not r.exit.ok and not r.after_stop]
    if not failed:
        return None, list(exits)
    own = [r for r in failed if not (r.end and r.end.connection_lost)] or failed
    culprit = min(own, key=_fault_ns)
    marked = [
        msgspec.structs.replace(r, secondary=r.rank != culprit.rank and not r.exit.ok and not r.after_stop)
        for r in exits
    ]
    return culprit.rank, marked


def fault_ns(exits: Sequence[ExitReport]) -> int:
    """When the trouble began, as far as anybody saw."""
    return min((_fault_ns(r) for r in exits if not r.exit.ok), default=0)


def _fault_ns(report: ExitReport) -> int:
    if report.end is not None and report.end.at_ns and report.exit.signal is None:
        return min(report.end.at_ns, report.at_ns)
    return report.at_ns


def verdict(culprit: ExitReport) -> str:
    """One sentence: which rank, where, how it ended, at which step, doing what, and its own last words."""
    where = f"rank {culprit.rank} on {culprit.node}"
    if culprit.devices:
        where += f" ({', '.join(d.device for d in culprit.devices)})"
    if culprit.end is not None and culprit.end.how == "start-failed":
        return f"{where} could not be started: {culprit.end.message}"
    step = culprit.training_step if culprit.training_step is not None else culprit.steps
    text = f"{where} {culprit.exit.describe()} after {step} steps"
    if culprit.training_step is not None:
        text = f"{where} {culprit.exit.describe()} at step {step}"
    if culprit.end is not None and culprit.end.exception:
        said = culprit.end.message.strip().splitlines()
        text += f": {culprit.end.exception}" + (f": {said[0][:200]}" if said else "")
    elif culprit.activity:
        text += f"; it was {culprit.activity}"
    return text


def secondary_note(exits: Sequence[ExitReport]) -> str:
    ranks = sorted(r.rank for r in exits if r.secondary)
    if not ranks:
        return ""
    names = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"; {'rank' if len(ranks) == 1 else 'ranks'} {names} followed because their peer was gone"
