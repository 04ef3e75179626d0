"""`python -m torchloom.cli.doctor.torch_facts`: prints what torch has here, as one line of JSON.

In a process of its own: importing torch may fail, take long, or abort the interpreter.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def facts() -> dict[str, Any]:
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    found: dict[str, Any] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "devices": [],
        "accelerator": "",
    }
    found |= _cuda(torch) | _accelerator(torch) | _distributed() | _recorder()
    return found


def _cuda(torch: Any) -> dict[str, Any]:
    """Of CUDA and ROCm, which torch calls cuda as well."""
    if not torch.version.cuda and not getattr(torch.version, "hip", None):
        return {}
    try:
        count = torch.cuda.device_count()
        devices = [torch.cuda.get_device_name(i) for i in range(count)]
        return {"devices": devices, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    except (RuntimeError, AssertionError, AttributeError) as error:  # driver mismatch, no driver
        return {"cuda_error": str(error).splitlines()[0]}


def _accelerator(torch: Any) -> dict[str, Any]:
    module: Any = getattr(torch, "accelerator", None)
    if module is None or not module.is_available():
        return {}
    named = module.current_accelerator()
    return {"accelerator": named.type, "count": module.device_count()} if named is not None else {}


def _distributed() -> dict[str, Any]:
    import torch.distributed as dist

    if not dist.is_available():
        return {"distributed": False, "backends": []}
    known = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available, "mpi": dist.is_mpi_available}
    return {"distributed": True, "backends": [name for name, there in known.items() if there()]}


def _recorder() -> dict[str, Any]:
    """Whether the recorder that a worker would load can be loaded."""
    from torchloom.probe.observe import fallback_recorder, recorder

    recorder.load()
    native = recorder.is_native()
    return {"recorder": "native" if native else "python" if fallback_recorder.is_loaded() else "none"}


if __name__ == "__main__":
    print(json.dumps(facts()))
    sys.stdout.flush()
