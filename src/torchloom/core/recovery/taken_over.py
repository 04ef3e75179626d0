"""A run whose checkpoint store another run of the same name has taken over: it ends, whatever its budget.

Two submissions of one name and directory are two runs, and only the later one may use the states there
(checkpoint/store/runs.py). No restart of the earlier one can resume or save, so none is tried.
"""

from __future__ import annotations

from torchloom.model.fleet import Job, RestartPlan
from torchloom.model.incidents import ExitReport, Incident, Verdict

KIND = "taken-over"


def plan_end(job: Job, incident: Incident, report: ExitReport) -> RestartPlan | None:
    """The plan once an exit has shown it, whatever the incident was thought to be; None if none has."""
    if incident.kind != KIND:
        if report.end is None or not report.end.taken_over:
            return None
        said = report.end.message.strip().splitlines()
        cause = said[0] if said else f"another run of {job.id} has taken over its checkpoint store"
        incident.kind, incident.culprit, incident.judged = KIND, None, Verdict(cause=cause)
    return RestartPlan(False, 0.0, "no restart of this run can resume or save there")
