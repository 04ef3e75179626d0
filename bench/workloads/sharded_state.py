"""A rank with a large state of its own, as under FSDP2, which notes when its steps were done.

sharded_state.py OUT MEGABYTES SAVE_AT     OUT/rank<n> gets a line `generation step ns` for each step,
                                           OUT/restored-<generation>.<n> gets `where seconds`,
                                           OUT/phases-<generation>.<n> gets lines `phase ns`

The step SAVE_AT is saved to the store, others only in memory, as the memory tier wants them.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torchloom as loom

PIECE_MB = 4
STEP_S = 0.05


class Shards:
    """What this rank alone has."""

    def __init__(self, megabytes: int) -> None:
        count = max(1, megabytes // PIECE_MB)
        self.pieces = [torch.full((PIECE_MB * 250_000,), float(n)) for n in range(count)]

    def state_dict(self) -> dict[str, Any]:
        return {str(n): piece for n, piece in enumerate(self.pieces)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for n, piece in enumerate(self.pieces):
            piece.copy_(state[str(n)])


out, megabytes, save_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
phases = [f"script {time.monotonic_ns()}"]
torch.set_num_threads(1)
dist.init_process_group("gloo")
phases.append(f"group {time.monotonic_ns()}")
rank, generation = dist.get_rank(), os.environ["LOOM_GENERATION"]
shards = Shards(megabytes)
inputs = torch.randn(256, 256)
counted = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # its steps are what torchloom counts
checkpoint = loom.Checkpoint(shards=shards, every=10**9)
phases.append(f"restore {time.monotonic_ns()}")
step = checkpoint.restore()
phases.append(f"restored {time.monotonic_ns()}")
(out / f"phases-{generation}.{rank}").write_text("\n".join(phases))
if (found := checkpoint.restored) is not None and found.where:
    (out / f"restored-{generation}.{rank}").write_text(f"{found.where.split()[-1]} {found.took_s}")
with (out / f"rank{rank}").open("a", buffering=1) as notes, checkpoint:
    while True:
        step += 1
        until = time.thread_time() + STEP_S
        while time.thread_time() < until:  # a step is work: what takes the core from it makes it longer
            inputs = torch.tanh(inputs @ inputs)
        shards.pieces[step % len(shards.pieces)].add_(1.0)
        dist.all_reduce(torch.ones(1000))
        counted.step()
        checkpoint.step(step)
        if step == save_at:
            checkpoint.save(step, wait=True)
        notes.write(f"{generation} {step} {time.monotonic_ns()}\n")
