"""Numbers shown to people, derived from the state: goodput and recovery times."""

from __future__ import annotations

from torchloom.model.fleet import Fleet, Job, JobState
from torchloom.model.incidents import Incident


def goodput(fleet: Fleet, job: Job, now_ns: int) -> float | None:
    """Share of the time since the first start that was worth something: in which the job was not down because
    of a fault, and did not make steps that were lost with a generation."""
    if not job.started_at_ns:
        return None
    wall = (job.ended_at_ns or now_ns) - job.started_at_ns
    if wall <= 0:
        return None
    down = job.down_ns + job.lost_ns
    incident = fleet.incidents.get(job.incident)
    if incident is not None and incident.timeline.fault_ns and not incident.timeline.first_step_ns:
        down += max(0, _up_again_ns(job, incident, now_ns) - incident.timeline.fault_ns)
    else:
        down += sum(max(0, now_ns - hang.timeline.fault_ns) for hang in _hangs(fleet, job))
    return max(0.0, min(1.0, 1 - down / wall))


def count_lost(job: Job, incident: Incident, next_step: int | None) -> None:
    """How many steps a recovery has cost: by the script's own count where it has one (`next_step` is the one
    that comes next), else all that the ended generation had made, unless a state of it was restored."""
    made = max(incident.exits, key=lambda r: r.steps, default=None)
    reached = [r.training_step for r in incident.exits if r.training_step is not None]
    if reached and next_step is not None:
        incident.lost_steps = max(0, max(reached) - next_step + 1)
    elif made is not None and not incident.timeline.restored_ns:
        incident.lost_steps = made.steps
    if made is not None and made.steps and incident.lost_steps:
        share = min(1.0, incident.lost_steps / made.steps)
        job.lost_ns += int(share * made.ran_s * 1e9)


def _hangs(fleet: Fleet, job: Job) -> list[Incident]:
    """Those that last and that nobody acts on yet: one at most, whatever its kind (policy.reporting.key)."""
    told = (fleet.incidents.get(id) for id in job.findings.values())
    return [incident for incident in told if incident is not None and is_stuck(incident)]


def is_stuck(incident: Incident) -> bool:
    return incident.open and incident.finding is not None and incident.finding.traits.stuck


def _up_again_ns(job: Job, incident: Incident, now_ns: int) -> int:
    """A job that completed without ever reporting a step counts as training since its processes started."""
    if job.state is JobState.COMPLETED and incident.timeline.spawned_ns:
        return incident.timeline.spawned_ns
    return job.ended_at_ns or now_ns


def recovery_s(incident: Incident) -> float | None:
    """From the fault to the first step after it."""
    line = incident.timeline
    if not line.fault_ns or not line.first_step_ns:
        return None
    return (line.first_step_ns - line.fault_ns) / 1e9
