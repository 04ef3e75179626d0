"""A rank died of a closed connection, and a node of its job cannot be heard: one fault, one incident.

Which of the two is noticed first is chance. Neither proves anything, so the incident stays a crash until the
silent node tells how its rank ended, or is said to be gone (lost_nodes.py). Owns how the two are found to
belong together; decides nothing.
"""

from __future__ import annotations

from torchloom.core.turn import Turn
from torchloom.model.fleet import Job, JobState
from torchloom.model.incidents import ExitReport, Incident


def followed(report: ExitReport) -> bool:
    """Whether it died because a peer was gone."""
    return report.end is not None and report.end.connection_lost


def take_over_silence(turn: Turn, job: Job, report: ExitReport) -> Incident | None:
    """What was said about a silent node of the job, if this exit may have followed from it: a crash now."""
    told = [turn.fleet.incidents.get(id) for id in job.silent.values()] if followed(report) else []
    for incident in told:
        if incident is not None and incident.open:
            incident.kind, incident.timeline.decided_ns = "crash", turn.now_ns
            return incident
    return None


def without_cause(turn: Turn, job: Job) -> Incident | None:
    """The incident of the recovery under way, if all that is known of it is that ranks lost their peer."""
    incident = turn.fleet.incidents.get(job.incident)
    if job.state is not JobState.RECOVERING or incident is None or incident.kind != "crash":
        return None
    return incident if incident.culprit is not None and followed(incident.exits[0]) else None
