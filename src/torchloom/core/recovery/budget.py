"""Whether a failed job is tried again, and after which delay. Randomness is an argument."""

from __future__ import annotations

from torchloom.model.fleet import Job, RestartPlan
from torchloom.model.job import RestartLimits


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
    number = f"restart {job.restarts + 1} of at most {limits.max_restarts}"
    if progress:
        return RestartPlan(True, 0.0, f"{number}, at once because the job had made progress", progress)
    in_a_row = f"{fruitless} in a row of at most {limits.max_fruitless}"
    why = f"{number}, in {delay:.1f} s because there was no progress ({in_a_row})"
    return RestartPlan(True, delay, why, progress)
