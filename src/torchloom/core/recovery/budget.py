"""Whether a failed job is tried again, and after which delay. Randomness is an argument.

A checkpoint store that cannot be reached when a generation wants to restore costs no restart: the job waits
for it. No rank is to blame and no restart can succeed before the store answers, so the tries are not counted
as fruitless, and there is one incident for all of them. Only a job whose store has once been reached waits;
before that, the address is more likely wrong than the store away, and the budget applies.

Two submissions of one name and directory are two runs, and only the later one may use the states there
(checkpoint/store/runs.py). No restart of the earlier one can resume or save, so it ends, whatever its budget.
"""

from __future__ import annotations

from torchloom.core.recovery.incidents import followed
from torchloom.model.fleet import Fleet, Job, RestartPlan
from torchloom.model.incidents import ExitReport, Incident, Verdict
from torchloom.model.job import RestartLimits

STORE_AWAY = "checkpoint-store-away"
TAKEN_OVER = "taken-over"


def backoff_s(limits: RestartLimits, fruitless: int, chance: float) -> float:
    """Delay before the next try after `fruitless` tries in a row without progress.

    The first restart after real progress has no delay; from then on it doubles up to the cap, spread by
    the jitter so that many jobs that failed together do not come back together.
    """
    if fruitless == 0:
        return 0.0
    delay = min(limits.backoff_cap_s, limits.backoff_base_s * 2.0 ** min(fruitless - 1, 32))
    return max(0.0, delay * (1 + limits.jitter * (2 * chance - 1)))


def made_progress(limits: RestartLimits, steps: int, ran_s: float) -> bool:
    return steps >= limits.progress_steps or ran_s >= limits.progress_s


def plan_restart(job: Job, rank: int | None, progress: bool, chance: float) -> RestartPlan:
    """Decide what follows a failure that `rank` seems to have caused (None: no worker did)."""
    limits = job.spec.restarts
    fruitless = 0 if progress else job.fruitless + 1
    by_rank = job.restarts_by_rank.get(rank, 0) if rank is not None else 0
    if limits.max_restarts <= 0:
        return RestartPlan(False, 0.0, "restarts are off for this job", progress)
    if job.restarts >= limits.max_restarts:
        used = f"the budget of {limits.max_restarts} restarts (--max-restarts) is used up"
        return RestartPlan(False, 0.0, used, progress)
    if rank is not None and by_rank >= limits.max_restarts_per_worker:
        return RestartPlan(
            False,
            0.0,
            f"rank {rank} has caused {by_rank} restarts, its budget is {limits.max_restarts_per_worker}",
            progress,
        )
    if fruitless > limits.max_fruitless:
        return RestartPlan(
            False,
            0.0,
            f"{job.fruitless} restarts in a row brought no progress "
            f"(less than {limits.progress_steps} steps and {limits.progress_s:g} s), "
            f"--max-fruitless {limits.max_fruitless} allows no more",
            progress,
        )
    delay = backoff_s(limits, fruitless, chance)
    number = job.restarts + 1
    if progress:
        of = f"restart {number} of at most {limits.max_restarts}"
        return RestartPlan(True, 0.0, f"{of}, at once because the job had made progress", progress)
    # Without progress the job ends long before its whole budget is used: say the limit that counts.
    last = min(limits.max_restarts, job.restarts + limits.max_fruitless - fruitless + 1)
    why = f"restart {number} of at most {last} without progress, in {delay:.1f} s"
    return RestartPlan(True, delay, why, progress)


def store_is_away(job: Job, report: ExitReport) -> bool:
    """Did this worker end because it could not reach the store that the job's states are in?"""
    known = job.checkpoints is not None and job.spec.restarts.max_restarts > 0
    return known and report.end is not None and report.end.store_away


def same_store_wait(fleet: Fleet, job: Job) -> Incident | None:
    """The incident about it, if the job has been waiting since an earlier try."""
    incident = fleet.incidents.get(job.incident)
    return incident if incident is not None and incident.kind == STORE_AWAY and job.store_waits else None


def store_explains(job: Job, incident: Incident, report: ExitReport) -> bool:
    """Is this why the others ended? Peers follow at once, and their ends may be known first."""
    same = incident.kind == "crash" and incident.generation == job.generation and store_is_away(job, report)
    return same and all(e.after_stop or followed(e) for e in incident.exits)


def blame_store(job: Job, incident: Incident, report: ExitReport, chance: float) -> None:
    """What was thought a crash is this wait."""
    incident.kind, incident.culprit, incident.judged = STORE_AWAY, None, Verdict(cause=store_verdict(report))
    job.plan = plan_wait(job, chance)


def plan_wait(job: Job, chance: float) -> RestartPlan:
    """Try again later, for as long as it takes."""
    delay_s = backoff_s(job.spec.restarts, job.store_waits + 1, chance)
    tries = f"try {job.store_waits + 1}"
    reason = f"it waits until the store answers and looks again in {delay_s:.1f} s ({tries}), at no cost"
    return RestartPlan(True, delay_s, reason, waits=True)


def store_verdict(report: ExitReport) -> str:
    said = report.end.message.strip().splitlines() if report.end is not None else []
    why = f": {said[0][:300]}" if said else ""
    return f"the checkpoint store is unreachable{why}"


def plan_end(job: Job, incident: Incident, report: ExitReport) -> RestartPlan | None:
    """The plan once an exit has shown it, whatever the incident was thought to be; None if none has."""
    if incident.kind != TAKEN_OVER:
        if report.end is None or not report.end.taken_over:
            return None
        said = report.end.message.strip().splitlines()
        cause = said[0] if said else f"another run of {job.id} has taken over its checkpoint store"
        incident.kind, incident.culprit, incident.judged = TAKEN_OVER, None, Verdict(cause=cause)
    return RestartPlan(False, 0.0, "no restart of this run can resume or save there")
