"""Which of several exits was the cause and which were its consequences, and the sentence that says so.

Some backends end the process at once when sizes do not match, sooner than any detector looks. Then every end
looks like a separate crash, and only the last collectives of the dead, side by side, show the cause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from torchloom.core.detect.desync import NEVER_ALIKE, desync
from torchloom.core.detect.thresholds import Pace, StuckLimits
from torchloom.core.detect.window import Collective, RankWindow
from torchloom.core.recovery import budget
from torchloom.core.recovery.incidents import followed
from torchloom.model.findings import Evidence, Finding
from torchloom.model.fleet import Worker
from torchloom.model.incidents import ExitReport, Incident, Verdict


def charge(incident: Incident, report: ExitReport, withheld: Sequence[str] = ()) -> bool:
    """Add an exit to an incident and say whether it changed who is to blame.

    A survivor that dies of a closed connection is secondary even if its process is gone first, because
    the culprit may still be finalising; the time of the exception decides before the time of the exit.
    `withheld` are names of variables that the job was not given.
    """
    if report.after_stop:
        # The last words of workers that we stopped explain nothing, and there may be thousands of them.
        report = msgspec.structs.replace(report, log_tail=())
    elif len(incident.exits) >= _ALL_LOOKED_AT:
        report = _shortened(report)
    chief = incident.exits[0] if incident.culprit is not None and incident.exits else None
    if report.after_stop or report.exit.source == "operator" or (report.exit.ok and chief is None):
        incident.exits.append(report)
        return False
    nobody = incident.kind in (
        "store-lost",
        "node-lost",
        "link-broken",
        "device-failed",
        budget.STORE_AWAY,
        budget.TAKEN_OVER,
    )
    if nobody or (incident.finding is not None and incident.kind != "crash"):
        incident.exits.append(msgspec.structs.replace(report, secondary=True))
        return False
    line = incident.timeline
    line.fault_ns = _fault_ns(report) if chief is None else min(line.fault_ns, _fault_ns(report))
    if chief is not None and _guilt(chief) <= _guilt(report):
        incident.exits.append(report if report.exit.ok else _as_secondary(report))
        return False
    if chief is not None:
        incident.exits[0] = _as_secondary(chief)
    incident.exits.insert(0, report)
    incident.culprit = report.rank
    hint = missing_variable(report, withheld)
    incident.judged = Verdict(cause=verdict(report), exit_rank=report.rank, hint=hint)
    return True


def _shortened(report: ExitReport) -> ExitReport:
    """What the first of them say in full need not be kept of thousands that failed alike."""
    end = report.end
    if end is not None:
        end = msgspec.structs.replace(
            end, message=end.message[:_SHORT_TEXT], traceback=end.traceback[-_SHORT_TEXT:]
        )
    return msgspec.structs.replace(report, log_tail=(), end=end)


def complete(incident: Incident, report: ExitReport) -> bool:
    """Replace the report of a failed script by the exit of its process; returns whether there was one.
    Append the exit status if the process failed on its own."""
    for at, said in enumerate(incident.exits):
        if said.rank == report.rank and said.exit.source == "end-record":
            by_itself = report.exit.code not in (0, None)
            whole = msgspec.structs.replace(
                report,
                exit=report.exit if by_itself else said.exit,
                end=report.end or said.end,
                collectives=report.collectives or said.collectives,
                xids=report.xids or said.xids,
                secondary=said.secondary,
            )
            incident.exits[at] = whole
            if incident.judged.exit_rank == whole.rank:
                incident.judged = msgspec.structs.replace(incident.judged, cause=verdict(whole))
            return True
    return False


def _guilt(report: ExitReport) -> tuple[int, int]:
    """The smaller, the likelier the cause: a rank's own failure, then a rank that left the others with code
    0, then a rank that lost its peer."""
    return 2 if followed(report) else int(report.exit.ok), _fault_ns(report)


def _as_secondary(report: ExitReport) -> ExitReport:
    """Several ranks that could not be started have one cause, but none of them followed another."""
    return msgspec.structs.replace(report, secondary=not start_failed(report))


def _fault_ns(report: ExitReport) -> int:
    if report.end is not None and report.end.at_ns and report.exit.signal is None:
        return min(report.end.at_ns, report.at_ns)
    return report.at_ns


def start_failed(report: ExitReport) -> bool:
    return report.end is not None and report.end.how == "start-failed"


def left_early(workers: Sequence[Worker]) -> list[ExitReport]:
    """The exits of those that ended with code 0."""
    return [
        ExitReport(
            rank=worker.ref.rank,
            node=worker.node,
            exit=worker.exit,
            at_ns=worker.exited_at_ns,
            steps=worker.steps,
            training_step=worker.training_step,
            devices=worker.devices,
        )
        for worker in workers
        if not worker.alive and worker.exit is not None and worker.exit.ok
    ]


def verdict(culprit: ExitReport) -> str:
    """One sentence: which rank, where, how it ended, at which step, doing what, and its own last words."""
    where = f"rank {culprit.rank} on {culprit.node}"
    if culprit.devices:
        where += f" ({', '.join(d.device for d in culprit.devices)})"
    if culprit.end is not None and start_failed(culprit):
        return f"{where} could not be started: {culprit.end.message}"
    if culprit.training_step is not None:
        text = f"{where} {culprit.exit.describe()} at step {culprit.training_step}"
    else:
        text = f"{where} {culprit.exit.describe()} after {culprit.steps} step{'s' * (culprit.steps != 1)}"
    if culprit.exit.ok:
        return f"{text} while other ranks were still at work"
    if culprit.end is not None and culprit.end.exception:
        said = culprit.end.message.strip().splitlines()
        text += f": {culprit.end.exception}" + (f": {said[0][:200]}" if said else "")
    elif culprit.end is not None and (said := (culprit.end.message or "").strip().splitlines()):
        text += f": {said[0][:200]}"  # sys.exit("text")
    elif culprit.activity:
        text += f"; it was {culprit.activity}"
    return text


def missing_variable(culprit: ExitReport, withheld: Sequence[str]) -> str:
    """A hint if the script's error names a variable that it has not: its submitter had it and did not forward
    it, or it is one of torchft's."""
    if culprit.end is None or not culprit.end.exception:
        return ""
    said = culprit.end.message
    if culprit.end.exception == "KeyError" and said.strip().strip("'\"") == "TORCHFT_LIGHTHOUSE":
        return "a script of torchft needs a lighthouse: `loom run --replicas N` gives it one"
    for name in withheld:
        looked_up = culprit.end.exception == "KeyError" and said.strip().strip("'\"") == name
        if looked_up or (
            "_" in name and re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", said)
        ):
            return (
                f"{name} was set where the job was submitted and was not forwarded: submit with --env {name}"
            )
    return ""


def secondary_note(exits: Sequence[ExitReport]) -> str:
    """Other ranks that ended: of the same mistake, because a peer was gone, or for another reason."""
    others = [r for r in exits if r.secondary]
    alike = sorted(r.rank for r in others if _alike(exits[0], r))
    lost = sorted(r.rank for r in others if _lost_its_peer(r))
    notes = [f"{_names(alike)} failed alike, independently"] if alike else []
    if lost:
        whose = "its" if len(lost) == 1 else "their"
        notes.append(f"{_names(lost)} followed because {whose} peer was gone")
    for report in sorted(others, key=lambda r: r.rank)[:_OTHERS_SAID]:
        if report.rank not in alike and report.rank not in lost:
            why = f" ({report.end.exception})" if report.end is not None and report.end.exception else ""
            notes.append(f"rank {report.rank} {report.exit.describe()}, too{why}")
    return "; ".join(notes)


def culprits(incident: Incident) -> tuple[int, ...]:
    """All ranks to blame: those that a detector named, or the culprit and every other that failed alike or
    was killed as well. An error of another kind may be a consequence, so its rank is only mentioned."""
    if incident.finding is not None:
        return incident.finding.ranks
    if incident.culprit is None:
        return ()
    chief = next((e for e in incident.exits if e.rank == incident.culprit), None)
    if chief is None or followed(chief):
        return (incident.culprit,)
    others = {e.rank for e in incident.exits if not e.after_stop and (_killed(e) or _alike(chief, e))}
    return tuple(sorted({incident.culprit, *others}))


def _killed(report: ExitReport) -> bool:
    """By a signal from outside, which no peer's end sends. Who had lost its peer may be ended by us."""
    died = report.exit.signal not in (None, _SIGABRT) and report.exit.source != "operator"
    return died and not followed(report)


_OTHERS_SAID = 16
_ALL_LOOKED_AT = 64
_SHORT_TEXT = 500
_REFUSED = "Received data size doesn't match expected size"
"""gloo's last words when a peer sent more than it should, in any collective; it then ends the process."""
_SIGABRT = 6
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


def _lost_its_peer(report: ExitReport) -> bool:
    """It says so, or its backend has ended the process, as those do whose work was given up."""
    return followed(report) or report.exit.signal == _SIGABRT


def _alike(chief: ExitReport, other: ExitReport) -> bool:
    """Whether both died of the same error, and none of them of the other's death: a mistake in the script.
    The same error at the same line may name another device or another rank."""
    if chief.end is None or other.end is None or not chief.end.exception or followed(other):
        return False
    if chief.end.exception != other.end.exception:
        return False
    places = [_PLACE.findall(end.traceback)[-1:] for end in (chief.end, other.end)]
    same_place = bool(places[0]) and places[0] == places[1]
    return same_place or _NUMBERS.sub("#", chief.end.message) == _NUMBERS.sub("#", other.end.message)


def _names(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {names}"


def disagreement(exits: Sequence[ExitReport]) -> Finding | None:
    """The desync of which these workers died, if it was one. Workers we killed count as evidence too."""
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
    refused = any(_REFUSED in line for report in exits for line in report.log_tail)
    found = desync(windows, Pace(), StuckLimits(), refused) if len(windows) > 1 else []
    if not found:
        return _unlike_parts(exits) if refused else None
    # As they would be after a snapshot: numbers there are floats.
    inputs = {k: v if isinstance(v, str) else float(v) for k, v in found[0].inputs.items()}
    return msgspec.structs.replace(found[0], inputs={**inputs, "ends": float(len(windows))})


def _unlike_parts(exits: Sequence[ExitReport]) -> Finding | None:
    """gloo ended a rank because a peer sent it more than it expected, in an operation whose sizes differ by
    design: nobody can tell which of the ranks has the wrong parts."""
    for report in exits:
        last = report.collectives[-1] if report.collectives else None
        if last is None or last.op not in NEVER_ALIKE or not any(_REFUSED in li for li in report.log_tail):
            continue
        place = (last.op, last.group, last.group_seq)
        ranks = tuple(
            sorted(r.rank for r in exits if place in {(c.op, c.group, c.group_seq) for c in r.collectives})
        )
        if len(ranks) > 1:
            return Finding(
                kind="desync",
                ranks=ranks,
                sentence=f"the parts that ranks send and expect in {last.op} #{last.group_seq} of group "
                f"{last.group} do not fit: rank {report.rank} on {report.node} got more than it expected, "
                "and its backend ended it; compare the input and output split sizes of all ranks",
                confidence=0.6,
                certain=True,
                certainty="the backend refused what it received",
                may_act=True,
                evidence=(Evidence(report.rank, "it received more than it expected"),),
                inputs={"ends": float(len(ranks)), "group_seq": float(last.group_seq)},
            )
    return None


def tell_disagreement(incident: Incident, all_ended: bool = True) -> bool:
    """Make a crash that was a desync one, and say it better when more ends are known; whether it did.

    Looks at all ends each time. With many of them it therefore looks when their number has doubled, and when
    all are known: thousands end one after the other.
    """
    known, ends = incident.finding, len(incident.exits)
    if ends > _ALL_LOOKED_AT and ends & (ends - 1) and not all_ended:
        return False
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
    return collective if collective.finished_ns else msgspec.structs.replace(collective, failed=True)
