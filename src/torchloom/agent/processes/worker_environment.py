"""The environment and the start order of a worker: torchrun's variables, ours, and nothing secret of ours.

Pure: turns an effect and the job's environment into the spawner's start request.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchloom.model.effects import Launch, StartWorkers
from torchloom.model.ids import replica_id
from torchloom.model.messages import LIGHTHOUSE_SECRET, MEMORY_SECRET, STORE_SECRET

_OURS_ALONE = frozenset(
    {"LOOM_TOKEN", "LOOM_NATS_URL", "LOOM_NATS_USER", "LOOM_NATS_PASSWORD", "LOOM_NATS_CREDS", "LOOM_SPEC_FD"}
) | {STORE_SECRET, MEMORY_SECRET, LIGHTHOUSE_SECRET, "LOOM_BOX"}
_OURS_PREFIXES = ("LOOM_NATS_",)
_QUORUM_RETRIES = "36000"
"""While its lighthouse is restarted, a manager tries again after quorum timeout / retries, or after 0.1 s if
that is longer, until the quorum timeout. So many that a timeout of an hour does not mean a pause of 6 s."""

_QUORUM_TIMEOUT_S = "3600"
"""A replica whose lighthouse was on a lost node waits until a person has confirmed that, and does not die of
it; torchft's own timeout is 60 s."""


def without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """The job's environment without torchloom's own credentials, and without the black box of a worker that
    submitted the job."""
    return {
        name: value
        for name, value in env.items()
        if name not in _OURS_ALONE and not name.startswith(_OURS_PREFIXES)
    }


def worker_env(effect: StartWorkers, launch: Launch, env: Mapping[str, str], box: str) -> dict[str, str]:
    """Everything a worker finds in os.environ, as torchrun (torch 2.13) would set it and a little of ours."""
    ref = launch.ref
    made = without_secrets(env)
    made.update(
        {
            "LOCAL_RANK": str(launch.local_rank),
            "RANK": str(ref.rank),
            "GROUP_RANK": str(effect.group_rank),
            "ROLE_RANK": str(ref.rank),
            "ROLE_NAME": "default",
            "LOCAL_WORLD_SIZE": str(effect.local_world_size),
            "WORLD_SIZE": str(effect.world_size),
            "GROUP_WORLD_SIZE": str(effect.group_world_size),
            "ROLE_WORLD_SIZE": str(effect.world_size),
            "MASTER_ADDR": effect.store.host,
            "MASTER_PORT": str(effect.store.port),
            "TORCHELASTIC_RESTART_COUNT": str(effect.restart_count),
            "TORCHELASTIC_MAX_RESTARTS": str(effect.max_restarts),
            "TORCHELASTIC_RUN_ID": effect.job,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
            "JOB_ID": effect.job,
            "LOOM_JOB": effect.job,
            "LOOM_REPLICA": replica_id(effect.job, replica_index(effect, ref.rank)),
            "LOOM_GENERATION": str(ref.generation),
            "LOOM_INCARNATION": str(ref.incarnation),
        }
    )
    made.update(_replica_env(effect))
    if effect.replica is not None:
        made.setdefault("TORCHFT_QUORUM_RETRIES", _QUORUM_RETRIES)
        made.setdefault("TORCHFT_QUORUM_TIMEOUT_SEC", _QUORUM_TIMEOUT_S)
    if effect.max_steps is not None:
        made["MAX_STEPS"] = str(effect.max_steps)
    if effect.restore_step is not None:
        made["LOOM_RESTORE_STEP"] = str(effect.restore_step)
    made.pop("LOOM_UNWRITTEN", None)
    made.pop("LOOM_PAUSED", None)
    if effect.paused:
        made["LOOM_PAUSED"] = "1"
    made.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if box:
        made["LOOM_BOX"] = box
    if effect.local_world_size > 1:
        made.setdefault("OMP_NUM_THREADS", "1")
    return made


def _replica_env(effect: StartWorkers) -> dict[str, str]:
    """What torchft's own examples and its Manager read."""
    seat, address = effect.replica, effect.store
    if seat is None:
        return {}
    return {
        "TORCHFT_LIGHTHOUSE": f"http://{address.lighthouse}",
        "REPLICA_GROUP_ID": str(seat.index),
        "NUM_REPLICA_GROUPS": str(seat.size),
        "LOOM_REPLICA_SET": seat.set,
        "LOOM_LIGHTHOUSE_NEWS": address.news,
    }


def replica_index(effect: StartWorkers, rank: int) -> int:
    """Ranks are dealt to replicas in equal runs."""
    return rank * max(1, effect.replicas) // max(1, effect.world_size)


def start_order(
    effect: StartWorkers,
    launch: Launch,
    env: Mapping[str, str],
    *,
    box: Path,
    box_fallback: Path,
    log: Path,
    cores: list[int] | None,
    unwritten: str = "",
) -> dict[str, Any]:
    """One worker as the spawner's start request wants it (docs/spawn.md). `unwritten`: held values that its
    script is known never to write."""
    ref, program = launch.ref, effect.program
    order: dict[str, Any] = {
        "box": str(box),
        "box_fallback": str(box_fallback),
        "job": ref.job,
        "replica": replica_id(effect.job, replica_index(effect, ref.rank)),
        "rank": ref.rank,
        "world_size": effect.world_size,
        "local_rank": launch.local_rank,
        "generation": ref.generation,
        "incarnation": ref.incarnation,
        "script": None,
        "module": None,
        "command": None,
        "argv": list(program.args),
        "cwd": effect.cwd,
        "env": {
            **worker_env(effect, launch, env, str(box)),
            "TORCHELASTIC_ERROR_FILE": str(log.with_suffix(".error.json")),
            **({"LOOM_UNWRITTEN": unwritten} if unwritten else {}),
        },
        "stdout": str(log),
        "stderr": str(log),
        "umask": None,
        "rlimits": None,
        "cpus": cores,
        "threads": None,
        "schedule": effect.schedule,
        "store_secret": env.get(STORE_SECRET),
    }
    match program.kind:
        case "script":
            order["script"] = program.target
        case "module":
            order["module"] = program.target
        case "command":
            order["command"] = [program.target, *program.args]
    return order
