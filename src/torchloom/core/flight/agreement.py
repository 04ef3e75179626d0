"""Whether the Flight Recorder, asked about a hang, says the same as the detector that found it."""

from __future__ import annotations

from torchloom.core.detect import words
from torchloom.core.flight.analysis import Analysis, RankLine
from torchloom.model.findings import Finding
from torchloom.model.flight import FlightWitness

WHO = "torch's Flight Recorder"
_MOST_LINES = 64


def witness(finding: Finding, analysis: Analysis) -> FlightWitness:
    if analysis.kind == "no-fault":
        return _put(False, f"{WHO} does not confirm it: {analysis.verdict}", analysis)
    blamed, named = set(finding.ranks), set(analysis.ranks)
    same_kind = (finding.kind == "desync") == (analysis.kind == "desync")
    if blamed == named and same_kind:
        return _put(True, f"{WHO} agrees: {analysis.verdict}", analysis)
    if blamed and blamed <= named:
        return _put(True, f"{WHO} agrees about {words.ranks_text(blamed)}: {analysis.verdict}", analysis)
    if not blamed:
        return _put(False, f"{WHO} adds: {analysis.verdict}", analysis)
    return _put(False, f"{WHO} says otherwise: {analysis.verdict}", analysis)


def _put(agrees: bool, sentence: str, analysis: Analysis) -> FlightWitness:
    lines = tuple(_line(one) for one in analysis.table[:_MOST_LINES])
    return FlightWitness(agrees=agrees, sentence=sentence, lines=lines)


def _line(one: RankLine) -> str:
    if not one.group:
        return f"rank {one.rank}: no operations"
    done = f"#{one.done} of group {one.group} is over" if one.done else f"group {one.group}"
    if not one.waits_in:
        return f"rank {one.rank}: in no operation; {done}"
    lasting = f" for {words.lasting(one.since_s)}" if one.since_s is not None else ""
    return f"rank {one.rank}: in {one.waits_in}{lasting} ({one.state}); {done}"
