"""One of some ranks that save and restore an FSDP2 model with Adam; rank 0 prints the times as JSON.

    torchrun-like variables RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
    python bench/support/sharded_rank.py MEGABYTES DISK MEMORY ROUNDS

A time is that of all ranks together: from the moment at which the first begins until the last is done. (The
longest of the ranks' own times would not do: with more ranks than cores, some begin when others are done, so
that a short copy would seem to take as long as that of two ranks.) Each figure is the best round. Before each
save, and before each copy of `paused_copy_s`, all ranks wait until the machine is calm, as in the rows of one
process. All methods take turns on one state. With PHASES, rank 0 prints where the blocking time of its best
save went.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import torchloom as loom

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.calm import calm
from support.phases import Phases

SIDE = 1024


def highest(seconds: float) -> float:
    found = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """From the first rank's beginning to the last one's end, by the clock that the ranks of a host share."""
    dist.barrier()
    began = time.perf_counter()
    result = work()
    ended = time.perf_counter()
    return highest(ended) + highest(-began), result


def together_calm() -> None:
    """Rank 0 waits for calm, the others for rank 0."""
    if dist.get_rank() == 0:
        calm()
    dist.barrier()


class LoomRank:
    name = "loom, 4 FSDP2 ranks, disk and memory tier"

    def __init__(self, parts: dict[str, Any], disk: Path, memory: Path) -> None:
        os.environ["LOOM_MEMORY_DIR"] = str(memory)
        self._parts, self._options = parts, {"every": 10**9, "keep": 1, "dir": disk / "loom", "name": "fsdp"}
        self._ckpt = loom.Checkpoint(**parts, **self._options)

    def save(self, step: int) -> tuple[float, float]:
        began = time.perf_counter()
        blocking, _ = timed(lambda: self._ckpt.save(step))
        self._ckpt.wait()
        total = highest(time.perf_counter() - began)
        self._ckpt._staging.finish_making()
        return blocking, total

    def restore(self) -> float:
        again = loom.Checkpoint(**self._parts, **self._options)
        seconds, step = timed(again.restore)
        assert step > 0 and again.restored is not None
        self._ckpt.close()
        self._ckpt = again
        return seconds if again.restored.where == "memory" else float("inf")  # no room: it says so on stderr

    def close(self) -> None:
        self._ckpt.close()


class DcpRank:
    def __init__(self, parts: dict[str, Any], disk: Path, background: bool) -> None:
        self.name = f"DCP, 4 FSDP2 ranks, {'async_save' if background else 'save'}"
        self._model, self._optimizer = parts["model"], parts["optimizer"]
        self._where, self._background = disk / self.name.rpartition(" ")[2], background
        self._group: Any = dist.new_group(backend="gloo") if background else None
        self._last = self._where

    def save(self, step: int) -> tuple[float, float]:
        if dist.get_rank() == 0:
            shutil.rmtree(self._last, ignore_errors=True)
        self._last, began = self._where / str(step), time.perf_counter()
        blocking, later = timed(self._begin)
        if later is not None:
            later.result()
        return blocking, highest(time.perf_counter() - began)

    def _begin(self) -> Any:
        state = dict(zip(("model", "optimizer"), get_state_dict(self._model, self._optimizer), strict=True))
        if self._background:
            return dcp.async_save(state, checkpoint_id=self._last, process_group=self._group)
        dcp.save(state, checkpoint_id=self._last)
        return None

    def restore(self) -> float:
        return timed(self._load)[0]

    def _load(self) -> None:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        state = {"model": model, "optimizer": optimizer}
        dcp.load(state, checkpoint_id=self._last)
        set_state_dict(
            self._model,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )

    def close(self) -> None: ...


def local(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found.detach()


def copying(parts: dict[str, Any]) -> Callable[[], float]:
    """A function that copies all ranks' shards at once into memory that is there, and says how long that
    took."""
    moments = [t for state in parts["optimizer"].state.values() for t in state.values() if t.dim()]
    inside = [local(t) for t in (*parts["model"].parameters(), *moments)]
    kept = [torch.zeros_like(tensor) for tensor in inside]
    return lambda: timed(lambda: torch._foreach_copy_(kept, inside))[0]


def main() -> None:
    megabytes, disk, memory, rounds = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = max(1, megabytes * 10**6 // (3 * 4 * SIDE * SIDE))
    model = torch.nn.Sequential(*(torch.nn.Linear(SIDE, SIDE, bias=False) for _ in range(layers)))
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    parts = {"model": model, "optimizer": optimizer}
    phases = Phases(on="PHASES" in os.environ and dist.get_rank() == 0)
    rows = []
    for make in (
        lambda: LoomRank(parts, disk, memory),
        lambda: DcpRank(parts, disk, background=False),
        lambda: DcpRank(parts, disk, background=True),
    ):
        copy = copying(parts)
        bound = min(copy() for _ in range(rounds + 1))
        method: Any = make()
        for step in (1, 2):
            method.save(step)
        saves, paused = [], []
        for n in range(rounds):
            together_calm()
            paused.append(copy())
            together_calm()
            with phases.noted():
                saves.append(method.save(3 + n))
        back = min(method.restore() for _ in range(rounds))
        method.close()
        bound = min(bound, *(copy() for _ in range(rounds + 1)))
        blocking, total = min(one for one, _ in saves), min(other for _, other in saves)
        rows.append(
            {
                "state_mb": round(layers * 3 * 4 * SIDE * SIDE / 1e6),
                "method": method.name,
                "blocking_s": round(blocking, 4),
                "copies": round(blocking / bound, 2),
                "paused_copies": round(blocking / min(paused), 2),
                "total_s": round(total, 3),
                "restore_s": None if back == float("inf") else round(back, 4),
                "new_process_s": None,
                "one_copy_s": round(bound, 4),
                "paused_copy_s": round(min(paused), 4),
                "shared_copy_s": None,
            }
        )
    if dist.get_rank() == 0:
        phases.print("4 FSDP2 ranks, rank 0")
        print(json.dumps(rows), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
