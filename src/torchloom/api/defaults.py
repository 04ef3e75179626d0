"""Settings of the service's own environment that are defaults for every job (mission J6). Pure.

WORLD_SIZE, MAX_RESTARTS, HEARTBEAT_TIMEOUT, CHECKPOINT_DIR, CHECKPOINT_EVERY, MAX_STEPS and JOB_ID replace
what a request leaves out; all but the first and the last reach the workers too, as do SLEEP_SEC,
DATASET_DIR, USE_S3 and S3_*. CHECKPOINT_EVERY may be a time or `auto` too. Values go only into a job's
environment, never into its description.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchloom.checkpoint.saving.interval import parse_every
from torchloom.errors import UsageError
from torchloom.model.ids import check_token
from torchloom.model.job import MAX_WORKERS
from torchloom.model.policy import Policy

PASSED_ON = frozenset(
    {
        *(
            "CHECKPOINT_DIR",
            "CHECKPOINT_EVERY",
            "SLEEP_SEC",
            "DATASET_DIR",
            "HEARTBEAT_TIMEOUT",
            "MAX_RESTARTS",
        ),
        *("MAX_STEPS", "USE_S3", "S3_ENDPOINT", "S3_BUCKET", "S3_REGION", "S3_ACCESS_KEY", "S3_SECRET_KEY"),
    }
)


@dataclass(frozen=True)
class Defaults:
    job_id: str = ""
    world_size: int | None = None
    max_restarts: int | None = None
    heartbeat_timeout_s: float | None = None
    checkpoint_dir: str = ""
    checkpoint_every: int | None = None
    max_steps: int | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What workers are given unless the job says otherwise. May hold secrets."""
    policy: Callable[[], Policy] = Policy
    """The policy unless the job brings its own; read at every submission, as a file may change."""

    @classmethod
    def read(cls, env: Mapping[str, str], policy: Callable[[], Policy] = Policy) -> Defaults:
        """Read an environment. An invalid value is an error when the service starts, not at the first job."""
        job_id = env.get("JOB_ID", "")
        return cls(
            job_id=check_token(job_id, "JOB_ID") if job_id else "",
            world_size=_whole(env, "WORLD_SIZE", 1, MAX_WORKERS),
            max_restarts=_whole(env, "MAX_RESTARTS", 0, 100_000),
            heartbeat_timeout_s=seconds(env, "HEARTBEAT_TIMEOUT"),
            checkpoint_dir=env.get("CHECKPOINT_DIR", ""),
            checkpoint_every=_steps(env, "CHECKPOINT_EVERY"),
            max_steps=_whole(env, "MAX_STEPS", 1, 2**53),
            policy=policy,
            env={name: env[name] for name in sorted(PASSED_ON) if env.get(name)},
        )


def _whole(env: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
        raise UsageError(f"{name} must be a whole number from {least} to {most}, not {text[:20]!r}.")
    return int(text)


def _steps(env: Mapping[str, str], name: str) -> int | None:
    """A number of steps; None for an interval of another kind, which only the workers need."""
    text = env.get(name, "").strip()
    if text and not text.isdecimal():
        parse_every(text)
        return None
    return _whole(env, name, 1, 2**53)


def seconds(env: Mapping[str, str], name: str) -> float | None:
    """A variable that holds a span of time. Raises UsageError if it is set to anything else."""
    text = env.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 86_400:
        raise UsageError(f"{name} must be a number of seconds up to a day, not {text[:20]!r}.")
    return value
