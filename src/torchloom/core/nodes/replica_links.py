"""Replicas of a torchft job that reach their lighthouse, but not each other: the incident that says so.

The lighthouse has decided already (core/broken_links.py); nothing is restarted and nobody is ended.
"""

from __future__ import annotations

from torchloom.core.broken_links import MENDED
from torchloom.core.detect.words import lasting
from torchloom.core.recovery.incidents import close, goodput, open_incident
from torchloom.core.turn import Turn
from torchloom.model.events import ReplicaLinksReported
from torchloom.model.fleet import Job
from torchloom.model.incidents import Decision, DecisionOutcome, EndedBy, Ending, Incident, Verdict
from torchloom.model.quorum import CutOffReplica, Link

KIND = "link-broken"
_NAMED = 4


def replica_links_reported(turn: Turn, event: ReplicaLinksReported) -> None:
    job = turn.fleet.jobs.get(event.job)
    if job is None or job.ended or job.generation != event.generation:
        return
    known = _open(turn, job)
    if not event.links:
        job.cut_off = None
        if known is not None:
            lasted = lasting((turn.now_ns - known.timeline.fault_ns) / 1e9)
            close(turn, job, known, Ending(EndedBy.ITSELF, f"{event.why or MENDED} after {lasted}"))
        return
    incident = known or _opened(turn, job)
    incident.judged = Verdict(cause=_cause(job, event))
    incident.decided = _decision(event)
    job.cut_off = CutOffReplica(incident.id, event.out)


def _open(turn: Turn, job: Job) -> Incident | None:
    found = turn.fleet.incidents.get(job.cut_off.incident) if job.cut_off is not None else None
    return found if found is not None and found.open else None


def _opened(turn: Turn, job: Job) -> Incident:
    incident = open_incident(turn, job, KIND, "", turn.now_ns)
    incident.node = job.workers[0].node if job.workers else ""
    incident.goodput_before = goodput(turn.fleet, job, turn.now_ns)
    return incident


def _cause(job: Job, event: ReplicaLinksReported) -> str:
    where = f" on {job.workers[0].node}" if job.workers else ""
    return (
        f"the collectives of {job.id}{where} fail: no connection between {_named(event.links)}, although "
        f"both reach the lighthouse on {event.node}"
    )


def _named(links: tuple[Link, ...]) -> str:
    named = ", ".join(f"{one} and {other}" for one, other in links[:_NAMED])
    return f"{named} and {len(links) - _NAMED} other pairs" if len(links) > _NAMED else named


def _decision(event: ReplicaLinksReported) -> Decision:
    if not event.out:
        reason = f"reported only: the other {event.others} replicas alone are fewer than --min-replicas"
        return Decision(action="report", outcome=DecisionOutcome.REPORTED, reason=reason)
    others = "the other replica trains" if event.others == 1 else f"the other {event.others} replicas train"
    reason = f"left out of the quorum; {others} without it until all its links work; its process is kept"
    return Decision(action="leave-out", outcome=DecisionOutcome.DONE, reason=reason)


def links_notice(event: ReplicaLinksReported) -> str:
    if not event.links:
        return f"{event.job}: {event.why or MENDED}"
    then = ", it is left out of the quorum" if event.out else ""
    return f"{event.job}: no connection between {_named(event.links)}{then}"
