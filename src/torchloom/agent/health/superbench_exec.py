"""Runs SuperBench on one GPU, where it is installed: `sb exec`, which is what `sb run` starts on each node.

It needs no Ansible, no container and no second host. What it runs is in the file that LOOM_SUPERBENCH names,
a configuration of SuperBench; without one a few micro-benchmarks of one GPU. Its results are read from the
files it writes (core/devices/superbench.py). Decides nothing: where none of its benchmarks could run there is
no result, and the product's own test follows.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchloom.agent.health.child_run import run_child
from torchloom.core.devices.superbench import of_executed
from torchloom.model.device_wear import TestResult

log = logging.getLogger(__name__)

CONFIG_VARIABLE = "LOOM_SUPERBENCH"
ENDS_WITHIN_S = 450.0
"""With the product's own test after it, a test ends within the time that `loom device test` waits."""
_ON_ONE_GPU = ("kernel-launch", "gemm-flops", "mem-bw")
_SCRIPT_BYTES = 4096
_MOST_FILES = 64
_MOST_BYTES = 4 << 20


def installed(env: Mapping[str, str]) -> str:
    """The path of SuperBench's `sb`; empty if it is not installed. Other programs have that name, too: the
    script that pip makes names the package."""
    found = shutil.which("sb", path=env.get("PATH"))
    if found is None:
        return ""
    try:
        with open(found, "rb") as script:
            return found if b"superbench" in script.read(_SCRIPT_BYTES) else ""
    except OSError:
        return ""


async def run_superbench(
    sb: str, env: Mapping[str, str], within_s: float = ENDS_WITHIN_S
) -> TestResult | None:
    """Its result on the device that `env` shows to it; None if nothing of it ran to its end."""
    with tempfile.TemporaryDirectory(prefix="loom-superbench-", ignore_cleanup_errors=True) as directory:
        out = Path(directory) / "outputs"
        out.mkdir()
        config = env.get(CONFIG_VARIABLE) or str(_own_config(Path(directory)))
        command = (sb, "exec", "--config-file", config, "--output-dir", str(out))
        try:
            end = await run_child(command, env, within_s, out)
        except OSError as error:
            log.warning("SuperBench (%s) cannot be started: %s", sb, error)
            return None
        if end.code != 0:
            how = (
                f"did not end within {within_s:.0f} s" if end.code is None else f"ended with code {end.code}"
            )
            log.warning("SuperBench (%s) %s", sb, how)
        return of_executed(_results(out)) if end.code is not None else None


def _own_config(directory: Path) -> Path:
    """In JSON, which is YAML as well."""
    benchmarks = {name: {"enable": True, "modes": [{"name": "local", "proc_num": 1}]} for name in _ON_ONE_GPU}
    made = {"enable": None, "env": {}, "monitor": {"enable": False}, "benchmarks": benchmarks}
    path = directory / "config.yaml"
    path.write_text(json.dumps({"version": "v0.12", "superbench": made}))
    return path


def _results(out: Path) -> Iterator[bytes]:
    """`benchmarks/NAME/rankN/results.json`, bounded."""
    for path in sorted(out.glob("benchmarks/*/rank*/results.json"))[:_MOST_FILES]:
        if path.is_file() and not path.is_symlink() and os.path.getsize(path) <= _MOST_BYTES:
            yield path.read_bytes()
