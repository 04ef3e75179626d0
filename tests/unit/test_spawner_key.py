"""Which differences between two jobs need two spawners."""

from __future__ import annotations

import pytest

from torchloom.spawner.key import spawner_environment, spawner_key

BASE = {"PATH": "/bin", "HOME": "/home/a", "LANG": "C.UTF-8"}


def key(env: dict[str, str], **changes: object) -> str:
    arguments: dict[str, object] = {"interpreter": "/bin/python", "flags": ["-u"], **changes}
    return spawner_key(env=env, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONHASHSEED",
        "LD_PRELOAD",
        "MALLOC_ARENA_MAX",
        "GLIBC_TUNABLES",
        "OMP_PROC_BIND",
        "MKL_NUM_THREADS",
        "TORCH_LOGS",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TORCHINDUCTOR_CACHE_DIR",
        "CUDA_MODULE_LOADING",
        "LC_ALL",
        "LANG",
    ],
)
def test_what_is_read_at_start_needs_its_own_spawner(name: str) -> None:
    assert key({**BASE, name: "x"}) != key(BASE)


@pytest.mark.parametrize(
    "name",
    [
        "RANK",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "LOOM_BOX",
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "NCCL_DEBUG",
        "WANDB_API_KEY",
        "TZ",
        "TMPDIR",
    ],
)
def test_what_is_read_later_or_set_after_the_fork_does_not(name: str) -> None:
    assert key({**BASE, name: "x"}) == key(BASE)


def test_interpreter_flags_preload_and_stack_count() -> None:
    plain = key(BASE)
    others = [
        key(BASE, interpreter="/bin/other"),
        key(BASE, flags=["-u", "-O"]),
        key(BASE, preload=["transformers"]),
        key(BASE, stack_limit=1 << 20),
        key(BASE, cold=True),
    ]
    assert len({plain, *others}) == 6


def test_a_preloaded_module_may_read_anything_but_what_is_the_workers() -> None:
    def preloaded(env: dict[str, str]) -> str:
        return key(env, preload=["m"])

    assert preloaded({**BASE, "HF_HOME": "/x"}) != preloaded(BASE)
    assert preloaded({**BASE, "RANK": "3", "LOOM_GENERATION": "2"}) == preloaded(BASE)


def test_a_cold_spawner_serves_every_environment() -> None:
    assert key({**BASE, "LD_PRELOAD": "x"}, cold=True) == key(BASE, cold=True)


def test_a_spawner_starts_without_what_belongs_to_workers() -> None:
    env = {**BASE, "RANK": "0", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "3", "LOOM_TOKEN": "secret"}
    assert spawner_environment(env) == BASE
