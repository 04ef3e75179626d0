"""Numbers shown to people, derived from the state: goodput and recovery times."""

from __future__ import annotations

from torchloom.model.fleet import Fleet, Job, JobState
from torchloom.model.incidents import Incident


def goodput(fleet: Fleet, job: Job, now_ns: int) -> float | None:
    """Share of the time since the first start in which the job was not down because of a fault.

    Steps that had to be repeated are not in it: an incident's `lost_steps` tells them where known.
    """
    if not job.started_at_ns:
        return None
    wall = (job.ended_at_ns or now_ns) - job.started_at_ns
    if wall <= 0:
        return None
    down = job.down_ns
    incident = fleet.incidents.get(job.incident)
    if incident is not None and incident.timeline.fault_ns and not incident.timeline.first_step_ns:
        down += max(0, _up_again_ns(job, incident, now_ns) - incident.timeline.fault_ns)
    else:
        down += sum(max(0, now_ns - hang.timeline.fault_ns) for hang in _hangs(fleet, job))
    return max(0.0, min(1.0, 1 - down / wall))


def _hangs(fleet: Fleet, job: Job) -> list[Incident]:
    """Those that last and that nobody acts on yet: one at most, whatever its kind (policy.reporting.key)."""
    told = (fleet.incidents.get(id) for id in job.findings.values())
    return [incident for incident in told if incident is not None and is_stuck(incident)]


def is_stuck(incident: Incident) -> bool:
    return incident.open and incident.finding is not None and incident.finding.traits.stuck


def _up_again_ns(job: Job, incident: Incident, now_ns: int) -> int:
    """A job that completed without ever telling a step worked since its processes were there."""
    if job.state is JobState.COMPLETED and incident.timeline.spawned_ns:
        return incident.timeline.spawned_ns
    return job.ended_at_ns or now_ns


def recovery_s(incident: Incident) -> float | None:
    """From the fault to the first step after it."""
    line = incident.timeline
    if not line.fault_ns or not line.first_step_ns:
        return None
    return (line.first_step_ns - line.fault_ns) / 1e9
