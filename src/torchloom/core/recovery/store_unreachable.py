"""A checkpoint store that cannot be reached when a generation wants to restore: the job waits for it.

No rank is to blame and no restart can succeed before the store answers, so tries cost nothing of the
restart budget and are not counted as fruitless. There is one incident for all of them. Only a job whose store
has once been reached waits; before that, an address is likelier wrong than away, and the budget applies.
"""

from __future__ import annotations

from torchloom.core.recovery.budget import backoff_s
from torchloom.core.recovery.incidents import followed
from torchloom.model.fleet import Fleet, Job, RestartPlan
from torchloom.model.incidents import ExitReport, Incident, Verdict

KIND = "checkpoint-store-away"


def is_away(job: Job, report: ExitReport) -> bool:
    """Did this worker end because it could not reach the store that the job's states are in?"""
    known = job.checkpoints is not None and job.spec.restarts.max_restarts > 0
    return known and report.end is not None and report.end.store_away


def same_wait(fleet: Fleet, job: Job) -> Incident | None:
    """The incident about it, if the job has been waiting since an earlier try."""
    incident = fleet.incidents.get(job.incident)
    return incident if incident is not None and incident.kind == KIND and job.store_waits else None


def explains(job: Job, incident: Incident, report: ExitReport) -> bool:
    """Is this why the others ended? Peers follow at once, and their ends may be known first."""
    same = incident.kind == "crash" and incident.generation == job.generation and is_away(job, report)
    return same and all(e.after_stop or followed(e) for e in incident.exits)


def take_over(job: Job, incident: Incident, report: ExitReport, chance: float) -> None:
    """What was thought a crash is this wait."""
    incident.kind, incident.culprit, incident.judged = KIND, None, Verdict(cause=verdict(report))
    job.plan = plan_wait(job, chance)


def plan_wait(job: Job, chance: float) -> RestartPlan:
    """Try again later, for as long as it takes."""
    delay_s = backoff_s(job.spec.restarts, job.store_waits + 1, chance)
    tries = f"try {job.store_waits + 1}"
    reason = f"it waits until the store answers and looks again in {delay_s:.1f} s ({tries}), at no cost"
    return RestartPlan(True, delay_s, reason, waits=True)


def verdict(report: ExitReport) -> str:
    said = report.end.message.strip().splitlines() if report.end is not None else []
    why = f": {said[0][:300]}" if said else ""
    return f"the checkpoint store is unreachable{why}"
