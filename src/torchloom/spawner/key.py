"""Which jobs may share a spawner: a short hash of everything that is read when a process or library starts.

A worker forked from a warm process gets its own environment after the fork, which is too late for what the
interpreter, the dynamic linker, malloc or a library's constructor has already read. All that is in the key.
Pure: nothing is read here but the arguments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

READ_AT_START = (
    "PYTHON",
    "LD_",
    "GLIBC_",
    "MALLOC",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS",
    "GOTO_",
    "BLIS_",
    "VECLIB_",
    "NUMEXPR_",
    "NPY_",
    "ATEN_",
    "TORCH",
    "PYTORCH",
    "TRITON",
    "CUDA",
    "LC_",
)
"""Prefixes of variables that are read at process or library start."""

READ_AT_START_EXACTLY = frozenset({"LANG", "LANGUAGE", "HOME", "VIRTUAL_ENV"})
"""Locale and the user's site-packages are settled when the interpreter starts."""

READ_LATER = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",  # read when CUDA is initialised, which a spawner never does
        "CUDA_DEVICE_ORDER",
        "OMP_NUM_THREADS",  # applied after the fork by torch.set_num_threads and OpenBLAS's own call
        "OPENBLAS_NUM_THREADS",
        "OPENBLAS_DEFAULT_NUM_THREADS",
        "GOTO_NUM_THREADS",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",  # torchrun's own addition, read by the process group
    }
)
"""Exceptions: these take effect in a forked worker too. NCCL_* is in no list: NCCL reads it when a
communicator is made."""

PER_WORKER = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
)
PER_WORKER_PREFIXES = ("TORCHELASTIC_", "LOOM_")

OF_THE_HOST = ("LOOM_NATIVE_DIR", "LOOM_BUILD")
"""Where compiled libraries are on a host, and whether it compiles any: a job brings nothing of it along."""


def spawner_key(
    interpreter: str,
    flags: Sequence[str],
    env: Mapping[str, str],
    preload: Sequence[str] = (),
    cold: bool = False,
    stack_limit: int | None = None,
) -> str:
    """Equal keys: workers of one may be forked by the spawner of the other.

    `env` is the job's (or any worker's) environment. With `preload` all of it counts, because a module of the
    user's may read anything when it is imported. `stack_limit` is RLIMIT_STACK's soft value: it settles the
    stack size of threads at process start. A cold spawner hands everything to a new interpreter.
    """
    if cold:
        told: dict[str, object] = {"cold": True, "interpreter": interpreter, "flags": list(flags)}
    else:
        told = {
            "interpreter": interpreter,
            "flags": list(flags),
            "env": {name: env[name] for name in sorted(env) if counts(name, everything=bool(preload))},
            "preload": list(preload),
            "stack": stack_limit,
        }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def counts(name: str, everything: bool = False) -> bool:
    """Whether a variable's value must be the same for two jobs to share a warm spawner."""
    if name in PER_WORKER or name in READ_LATER or name.startswith(PER_WORKER_PREFIXES):
        return False
    return everything or name in READ_AT_START_EXACTLY or name.startswith(READ_AT_START)


def of_the_host(env: Mapping[str, str]) -> dict[str, str]:
    """What every process of ours on a host has of the environment of its agent."""
    return {name: env[name] for name in OF_THE_HOST if name in env}


def spawner_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment to start a spawner with: the job's, without what belongs to single workers or is ours.

    READ_LATER goes too: libraries must come up with their defaults, so that a worker without these variables
    has what a fresh process has.
    """
    return {
        name: value
        for name, value in env.items()
        if name not in PER_WORKER and name not in READ_LATER and not name.startswith(PER_WORKER_PREFIXES)
    }
