"""From the body of POST /jobs to a job's specification and environment. Pure: performs and stores nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from msgspec.structs import replace

from torchloom.api.defaults import Defaults
from torchloom.api.schemas.bodies import JobRequest
from torchloom.core.placement.place import shape
from torchloom.core.policy.parsing import policy_from
from torchloom.errors import UsageError
from torchloom.model.fleet import Fleet
from torchloom.model.job import (
    MAX_WORKERS,
    CheckpointSettings,
    HangLimits,
    JobSpec,
    Program,
    RestartLimits,
)
from torchloom.model.policy import Policy
from torchloom.model.quorum import ReplicaSeat

EXAMPLE = Program("module", "torchloom.examples.char_gpt")
RESERVED = frozenset({"summaries", "purge"})
"""Names that are paths of the API."""


def spec_of(body: JobRequest, env: Mapping[str, str], defaults: Defaults, fleet: Fleet) -> JobSpec:
    """A request as the job specification the core knows."""
    if body.name in RESERVED:
        raise UsageError(f"No job can be called {body.name}, because the API has a path of that name.")
    program = program_of(body)
    per_node, nodes, replicas = shape_of(body, defaults, fleet)
    world = per_node * nodes
    if world > MAX_WORKERS:
        raise UsageError(f"{world} workers are more than the {MAX_WORKERS} that one job may have.")
    if not (body.min_workers or 1) <= world <= (body.max_workers or MAX_WORKERS):
        raise UsageError(f"{world} workers are not between min_workers and max_workers.")
    most = _first(body.max_restarts, defaults.max_restarts, RestartLimits().max_restarts)
    spec = JobSpec(
        program=program,
        cwd=body.cwd or "/",
        workers_per_node=per_node,
        nodes=nodes,
        replicas=replicas,
        interpreter=body.interpreter,
        spawn=body.spawn,
        preload=tuple(body.preload),
        restarts=RestartLimits(
            max_restarts=most,
            max_restarts_per_worker=most,
            # An explicit number of restarts also holds for a job that makes no progress.
            max_fruitless=_first(body.max_fruitless, body.max_restarts, RestartLimits().max_fruitless),
        ),
        pin_cores=body.pin_cores,
        log_dir=body.log_dir or "",
        expected_steps=body.expected_steps,
        env_names=tuple(sorted(env)),
        env_withheld=tuple(name for name in body.env_withheld if name not in env),
        labels=dict(body.labels),
        max_steps=body.max_steps or defaults.max_steps,
        min_workers=body.min_workers,
        max_workers=body.max_workers,
        standby=body.standby,
        replica=replica_of(body, nodes),
        limits=HangLimits(
            heartbeat_timeout_s=body.limits.heartbeat_timeout_s or defaults.heartbeat_timeout_s,
            hang_report_s=body.limits.hang_report_s,
            hang_act_s=body.limits.hang_act_s,
        ),
        policy=policy_of(body, defaults),
        checkpoint=CheckpointSettings(
            directory=body.checkpoint.directory or defaults.checkpoint_dir,
            every=body.checkpoint.every or defaults.checkpoint_every,
        ),
    )
    return spec if body.stop_grace_s is None else replace(spec, stop_grace_s=body.stop_grace_s)


def replica_of(body: JobRequest, nodes: int) -> ReplicaSeat | None:
    seat = body.replica
    if seat is None:
        return None
    if seat.index >= seat.size or seat.min_replicas > seat.size:
        raise UsageError(f"A torchft job of {seat.size} replicas has no replica {seat.index} of that kind.")
    if nodes > 1:
        raise UsageError("A replica of a torchft job runs on one node.")
    return ReplicaSeat(seat.set, seat.index, seat.size, seat.min_replicas)


def policy_of(body: JobRequest, defaults: Defaults) -> Policy:
    if body.policy is None:
        return defaults.policy()
    return policy_from(body.policy.model_dump())


def program_of(body: JobRequest) -> Program:
    """What runs: one of four ways to say it, or the example."""
    given = [name for name in ("program", "script", "module", "command") if getattr(body, name) is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be given together.")
    if body.command is not None:
        if body.args or not body.command[0]:
            raise UsageError("A command is one list: the program, then its arguments.")
        return Program("command", body.command[0], tuple(body.command[1:]))
    if body.program is not None:
        if body.args:
            raise UsageError("The arguments of a program belong into program.args.")
        program = Program(body.program.kind, body.program.target, tuple(body.program.args))
    elif body.script is not None:
        program = Program("script", body.script, tuple(body.args))
    elif body.module is not None:
        program = Program("module", body.module, tuple(body.args))
    else:
        program = replace(EXAMPLE, args=tuple(body.args))
    if program.kind == "script" and not program.target.strip():
        raise UsageError("The job names no script.")
    if program.kind == "script" and body.cwd is None and not program.target.startswith("/"):
        raise UsageError("The script has a relative path, so cwd must say what it is relative to.")
    return program


def shape_of(body: JobRequest, defaults: Defaults, fleet: Fleet) -> tuple[int, int, int]:
    """Workers per node, nodes and replicas."""
    by_node = body.workers_per_node is not None or body.nodes is not None
    by_replica = body.workers is not None
    if sum((body.world_size is not None, by_node, by_replica)) > 1:
        raise UsageError(
            "Say the number of workers once: world_size, replicas and workers, or nodes and workers_per_node."
        )
    replicas = body.replicas or 1
    if by_node:
        per_node, nodes = body.workers_per_node or 1, body.nodes or 1
    else:
        if by_replica:
            world = replicas * (body.workers or 1)
        else:
            world = body.world_size or (replicas if body.replicas else defaults.world_size or 1)
        if world > MAX_WORKERS:
            raise UsageError(f"{world} workers are more than the {MAX_WORKERS} that one job may have.")
        per_node, nodes = shape(fleet, world)
    if per_node * nodes % replicas:
        raise UsageError(
            f"{per_node * nodes} workers cannot be dealt to {replicas} replicas in equal numbers."
        )
    return per_node, nodes, replicas


def env_of(body: JobRequest, defaults: Defaults) -> dict[str, str]:
    """What the workers find in their environment: the service's defaults, the request's env, its settings.

    A setting wins over a variable of the same meaning, so that what the job's description says holds: a
    command line's flag over what its shell had exported.
    """
    for name in body.env:
        # The message names the variable, never its value.
        if not name or "=" in name or "\0" in name:
            raise UsageError(f"{name[:40]!r} cannot be an environment variable.")
    told = {
        "CHECKPOINT_DIR": body.checkpoint.directory,
        "CHECKPOINT_EVERY": body.checkpoint.every,
        "HEARTBEAT_TIMEOUT": body.limits.heartbeat_timeout_s,
        "MAX_RESTARTS": body.max_restarts,
        "MAX_STEPS": body.max_steps,
    }
    settings = {k: f"{v:g}" if isinstance(v, float) else str(v) for k, v in told.items() if v is not None}
    return {**defaults.env, **body.env, **settings}


def digest_of(body: JobRequest) -> str:
    """Distinguishes two requests, except by values of the environment: those are compared where stored."""
    return hashlib.sha256(body.model_dump_json(exclude={"env"}).encode()).hexdigest()


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)
