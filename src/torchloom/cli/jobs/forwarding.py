"""Which variables of the caller's shell a job gets. Pure.

A submitted job outlives the shell that submitted it, and its environment is stored. So `loom submit`
forwards what a training usually needs (below, and in docs/environment.md) and what `--env` names;
`--env-all` forwards everything. `loom run` in the foreground on its own machine forwards everything, as
torchrun does. The credentials of object stores, model hubs and experiment trackers are among what is
forwarded: without them a training that works in the shell would fail. All values are kept encrypted and are
never shown (docs/security.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchloom.errors import UsageError

NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TMP", "TEMP", "TZ", "LANG", "LANGUAGE"),
        *("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "GLIBC_TUNABLES"),
        *("VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "FTP_PROXY"),
        *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy"),
        *("JOB_ID", "WORLD_SIZE", "MAX_RESTARTS", "HEARTBEAT_TIMEOUT", "CHECKPOINT_DIR", "CHECKPOINT_EVERY"),
        *("MAX_STEPS", "SLEEP_SEC", "DATASET_DIR", "USE_S3"),
    }
)
"""Forwarded by name: the system's, proxies and certificates, and torchloom's settings."""
PREFIXES = (
    *("LC_", "LD_", "MALLOC_", "CONDA_", "PYTHON", "LOOM_"),
    *("TORCH", "PYTORCH_", "TRITON_", "XLA_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NUMEXPR_"),
    *("CUDA", "CUDNN_", "CUBLAS_", "NVIDIA_", "NVTE_", "HIP_", "ROCR_", "ROCM_", "HSA_", "MIOPEN_"),
    *("NCCL_", "RCCL_", "GLOO_", "UCC_", "UCX_", "FI_", "RDMAV_", "TP_SOCKET_"),
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "DATASETS_", "TOKENIZERS_", "DIFFUSERS_", "ACCELERATE_"),
    *("FSDP_", "DEEPSPEED_", "DS_", "PL_", "LIGHTNING_", "TORCHFT_"),
    *("WANDB_", "MLFLOW_", "TENSORBOARD_", "COMET_", "NEPTUNE_", "CLEARML_", "AIM_"),
    *("S3_", "AWS_", "GOOGLE_", "AZURE_"),
)
"""Forwarded by how they begin: what libraries read, and the credentials they need."""
_NEVER = (
    "LOOM_TOKEN",
    "LOOM_ADDRESS",
    "LOOM_CONTEXT",
    "LOOM_NATS_",
    "LOOM_STORE_SECRET",
    "LOOM_MEMORY_SECRET",
    "LOOM_LIGHTHOUSE_SECRET",
)
"""torchloom's own."""
_UNINTERESTING = frozenset(
    {
        "_",
        "HOSTNAME",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "PS1",
        "PS2",
        "MAIL",
        "EDITOR",
        "VISUAL",
        "PAGER",
        "LESS",
        "LS_COLORS",
    }
)
MOST_WITHHELD = 256
NAME_CHARS = 128


@dataclass(frozen=True)
class Forwarded:
    """What a job gets."""

    env: dict[str, str]
    withheld: list[str]
    """Names of variables that were set in the shell and that the job does not get: for a hint, should it
    miss one."""


def forward(env: Mapping[str, str], asked: Sequence[str], everything: bool) -> Forwarded:
    """The job's environment. `asked` is what --env says: NAME, NAME=VALUE, or NAME* for all that begin so."""
    found, withheld = {}, []
    for name, value in env.items():
        if name.startswith(_NEVER) or not _is_text(name + value):
            continue
        if everything or name in NAMES or name.startswith(PREFIXES):
            found[name] = value
        elif name not in _UNINTERESTING and len(name) <= NAME_CHARS:
            withheld.append(name)
    for one in asked:
        found |= _asked(one, env)
    return Forwarded(found, sorted(set(withheld) - found.keys())[:MOST_WITHHELD])


def _asked(one: str, env: Mapping[str, str]) -> dict[str, str]:
    name, given, value = one.partition("=")
    if not name or "\0" in one:
        raise UsageError(
            f"--env {one[:40]!r} names no variable.", hint="write --env NAME or --env NAME=VALUE"
        )
    if name.startswith(_NEVER):
        raise UsageError(f"--env {name}: torchloom does not give its own credentials to jobs.")
    if given:
        return {name: value}
    if name.endswith("*"):
        return {key: env[key] for key in env if key.startswith(name[:-1]) and not key.startswith(_NEVER)}
    if name not in env:
        raise UsageError(f"--env {name}: this shell has no such variable.", hint=f"write --env {name}=VALUE")
    return {name: env[name]}


def _is_text(text: str) -> bool:
    """JSON carries only what is UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
