"""Tests one device: computes, fills memory and communicates, and checks every result. Needs only torch.

    python -m torchloom.device_check cpu|gpu [SECONDS [CORES]]

Runs in a process of its own and ends itself after two minutes. CORES, such as 0,1,2, are those of a CPU
device. The last line is a JSON object: `metrics`, and `wrong` if a result was wrong; or `cannot`, if the test
could not run, which says nothing about the device. Sums of small whole numbers are exact in any order, so
results are compared bit for bit.

On a GPU the communication is copies between it and the host; a collective would need a second GPU. On CPU
cores it is an all_reduce of two processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MATRIX = {"cpu": 512, "gpu": 4096}
BUFFER_BYTES = {"cpu": 64 << 20, "gpu": 1 << 30}
REDUCED = 1 << 18
ENDS_AFTER_S = 120
PATTERNS = (0x00, 0xFF, 0x55, 0xAA)


class WrongResultError(Exception):
    """The device computed, kept or sent something wrong."""


def check(kind: str, seconds: float) -> dict[str, float]:
    """Measurements of the device, each taken for a share of `seconds`. Raises WrongResultError."""
    import torch

    metrics: dict[str, float] = {}
    if kind == "cpu":
        # First, because it forks: a process that has computed has threads, which a fork would not have.
        metrics["all_reduce_gbytes_per_s"] = _all_reduce(seconds / 3)
        device = torch.device("cpu")
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0))))
    else:
        device = torch.device("cuda", 0)
    metrics["gemm_gflops"] = _gemm(torch, device, MATRIX[kind], seconds / 3)
    metrics["memory_gbytes_per_s"] = _memory(torch, device, BUFFER_BYTES[kind], seconds / 3)
    if kind == "gpu":
        metrics["host_copy_gbytes_per_s"] = _host_copies(torch, device, seconds / 3)
    return metrics


def _rate(once: Callable[[], float], seconds: float) -> float:
    """Work per second: the best of several rounds, because other programs can only make it slower."""
    best, until = 0.0, time.monotonic() + seconds
    while True:
        began = time.monotonic()
        work = once()
        best = max(best, work / max(1e-9, time.monotonic() - began))
        if time.monotonic() >= until:
            return best


def _gemm(torch: Any, device: torch.device, size: int, seconds: float) -> float:
    made = torch.Generator().manual_seed(1)
    a = torch.randint(-4, 5, (size, size), generator=made).to(device, torch.float32)
    b = torch.randint(-4, 5, (size, size), generator=made).to(device, torch.float32)
    row = (a.sum(dim=0).to(torch.float64) @ b.to(torch.float64)).to(torch.float32)
    work = 2.0 * size * size * size / 1e9

    def once() -> float:
        product = a @ b
        if not torch.equal(product.sum(dim=0), row):
            raise WrongResultError(f"a product of {size} × {size} matrices is wrong")
        return work

    return _rate(once, seconds)


def _memory(torch: Any, device: torch.device, size: int, seconds: float) -> float:
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    turn = 0

    def once() -> float:
        nonlocal turn
        pattern = PATTERNS[turn % len(PATTERNS)]
        turn += 1
        source.fill_(pattern)
        target.copy_(source)
        if not bool((target == pattern).all()):
            raise WrongResultError(f"memory does not keep the pattern 0x{pattern:02X}")
        return 3 * size / 1e9

    return _rate(once, seconds)


def _host_copies(torch: Any, device: torch.device, seconds: float) -> float:
    here = torch.arange(16 << 20, dtype=torch.int32)

    def once() -> float:
        if not torch.equal(here.to(device).cpu(), here):
            raise WrongResultError("a copy to the device and back is not what was sent")
        return 8.0 * (16 << 20) / 1e9

    return _rate(once, seconds)


def _all_reduce(seconds: float) -> float:
    with tempfile.TemporaryDirectory(prefix="loom-check-") as directory:
        child = os.fork()
        if child == 0:
            try:
                _reduce(1, directory, seconds)
                os._exit(0)
            finally:
                os._exit(1)  # the other rank reports what went wrong
        try:
            return _reduce(0, directory, seconds)
        finally:
            _, status = os.waitpid(child, 0)
            if status != 0 and sys.exc_info()[0] is None:
                raise WrongResultError("the second process of the all_reduce failed")


def _reduce(rank: int, directory: str, seconds: float) -> float:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(os.path.join(directory, "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=30))
    best, until, on = 0.0, time.monotonic() + seconds, torch.ones(1)
    while True:
        values = torch.full((REDUCED,), float(rank + 1))
        began = time.monotonic()
        dist.all_reduce(values)
        best = max(best, REDUCED * 4 / 1e9 / max(1e-9, time.monotonic() - began))
        if not torch.equal(values, torch.full((REDUCED,), 3.0)):
            raise WrongResultError("the sum of an all_reduce is wrong")
        on.fill_(float(time.monotonic() < until))
        dist.broadcast(on, 0)
        if not on.item():
            dist.destroy_process_group()
            return best


def cannot(kind: str) -> str:
    """Why the test cannot run here; empty if it can."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported by {sys.executable}: {error}"
    if kind == "gpu" and not torch.cuda.is_available():
        return f"torch {torch.__version__} of {sys.executable} sees no GPU"
    return ""


def main(argv: list[str]) -> int:
    kind, seconds = argv[0], float(argv[1]) if len(argv) > 1 else 3.0
    signal.alarm(ENDS_AFTER_S)
    if len(argv) > 2:
        os.sched_setaffinity(0, {int(core) for core in argv[2].split(",")})
    found: dict[str, object]
    if why := cannot(kind):
        found = {"cannot": why}
    else:
        try:
            found = {"metrics": check(kind, seconds)}
        except WrongResultError as error:
            found = {"wrong": str(error)}
        except (RuntimeError, OSError, MemoryError) as error:
            # Without a GPU in it, an error is one of the host: its memory, its processes, its network.
            own = kind == "gpu" and isinstance(error, RuntimeError) and "out of memory" not in str(error)
            found = {"wrong" if own else "cannot": f"{type(error).__name__}: {error}"[:400]}
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
