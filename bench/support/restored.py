"""A new process that restores a state, as after a crash: prints the seconds that takes.

    python bench/support/restored.py MEGABYTES loom|torch|dcp PLACE NAME

The model is there, the optimizer has no state yet. What counts is what a script has to call.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

SIDE = 1024


def build(megabytes: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer whose states take about so many megabytes together."""
    layers = max(1, megabytes * 10**6 // (3 * 4 * SIDE * SIDE))
    model = torch.nn.ModuleList(torch.nn.Linear(SIDE, SIDE, bias=False) for _ in range(layers))
    return model, torch.optim.Adam(model.parameters(), foreach=False)


def restore(kind: str, place: str, name: str, model: Any, optimizer: Any) -> float:
    if kind == "loom":
        import torchloom as loom

        ckpt = loom.Checkpoint(model=model, optimizer=optimizer, every=10**9, dir=place, name=name)
        began = time.perf_counter()
        assert ckpt.restore() > 0
        return time.perf_counter() - began
    if kind == "torch":
        began = time.perf_counter()
        state = torch.load(Path(place) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return time.perf_counter() - began
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import _init_optim_state

    began = time.perf_counter()
    _init_optim_state(optimizer)  # what get_state_dict does first: DCP loads only into tensors that are there
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.load(state, checkpoint_id=place)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return time.perf_counter() - began


def main() -> None:
    megabytes, kind, place, name = sys.argv[1:]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, optimizer = build(int(megabytes))
    print(f"restored in {restore(kind, place, name, model, optimizer)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
