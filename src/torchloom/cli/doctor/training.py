"""What training finds here: torch, its devices and backends, and how ends of collectives are learned."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from torchloom.agent.health import known_gpus
from torchloom.cli.doctor.check import Check

_WITHIN_S = 180.0
"""A limit against a hang only: a cold disk takes long to import torch from."""


def ask_torch() -> dict[str, Any]:
    """What torch says in a process of its own; `error` when it says nothing."""
    command = (sys.executable, "-m", "torchloom.cli.doctor.torch_facts")
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_WITHIN_S)
    except subprocess.TimeoutExpired:
        return {"error": f"it was not imported within {_WITHIN_S:g} s"}
    for line in reversed(done.stdout.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    said = done.stderr.strip().splitlines()
    return {"error": said[-1] if said else f"its process ended with status {done.returncode}"}


def checks(facts: dict[str, Any]) -> list[Check]:
    if "error" in facts:
        fix = "Install it (`pip install torch`), and use the same environment for torchloom and the script."
        return [Check("torch", "broken", f"torch cannot be imported: {facts['error']}", fix=fix)]
    return [torch(facts), accelerator(facts, len(known_gpus.readings_or_why()[0])), completion(facts)]


def torch(facts: dict[str, Any]) -> Check:
    version = f"torch {facts['version']}"
    backends = facts.get("backends", [])
    if not facts.get("distributed"):
        text = f"{version} without torch.distributed"
        return Check("torch", "broken", text, "no job with several workers runs", "Install another build.")
    return Check("torch", "ok", f"{version}, backends {', '.join(backends) or 'none'}")


def accelerator(facts: dict[str, Any], seen: int) -> Check:
    """`seen`: GPUs that NVML lists."""
    name = "accelerator"
    built = (
        f"CUDA {facts['cuda']}" if facts.get("cuda") else f"ROCm {facts['hip']}" if facts.get("hip") else ""
    )
    if facts.get("cuda_error"):
        fix = "Install a driver that fits this CUDA, or a torch that fits the driver."
        text = f"torch was built for {built} but cannot use it: {facts['cuda_error']}"
        return Check(name, "broken" if seen else "note", text, fix=fix)
    used = facts.get("devices", [])
    if used:
        found = f"{len(used)} × {used[0]}, {built}, NCCL {facts.get('nccl', 'unknown')}"
        if "nccl" not in facts.get("backends", []):
            fix = "Install a build of torch with NCCL."
            return Check(name, "broken", found, "torch has no NCCL, so GPUs cannot be used together", fix)
        if len(used) < seen and not facts.get("visible"):
            return Check(name, "limited", f"{found}; NVML lists {seen}", fix="Check `nvidia-smi`.")
        hidden = f" (CUDA_VISIBLE_DEVICES={facts['visible']})" if facts.get("visible") else ""
        return Check(name, "ok", found + hidden)
    if seen and not built:
        text = f"{seen} GPUs, but this torch was built without CUDA"
        return Check(name, "broken", text, "training uses CPUs only", "Install a CUDA build of torch.")
    if seen:
        hidden = f" (CUDA_VISIBLE_DEVICES={facts['visible']!r})" if facts.get("visible") is not None else ""
        return Check(name, "limited", f"{seen} GPUs, but torch sees none{hidden}", fix="Unset the variable.")
    if facts.get("accelerator"):
        return Check(name, "ok", f"{facts['count']} × {facts['accelerator']} by torch.accelerator")
    return Check(name, "note", "none, so the self-test uses CPU tensors and gloo")


def completion(facts: dict[str, Any]) -> Check:
    name = "ends of collectives"
    if facts.get("recorder") == "native":
        text = "by the work's own callback on CPUs, by events and the work itself on devices"
        return Check(name, "ok", text)
    unseen = "who waits for whom is not known, so few hangs and stragglers name a rank"
    fix = "Run `python -m torchloom.probe.native`; it needs a C++ compiler."
    which = "the Python fallback samples collectives without their ends"
    if facts.get("recorder") != "python":
        which = "no recorder could be loaded (LOOM_RECORDER, or a torch without c10d)"
    return Check(name, "limited", which, unseen, fix)
