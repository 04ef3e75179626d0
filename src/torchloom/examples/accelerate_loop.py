"""A training loop written with accelerate, which saves and resumes by itself. Nothing is downloaded.

    loom run --nproc-per-node 2 accelerate_loop.py --output-dir out

There is no torchloom in this script. Steps, `accelerator.log` and every saved state are seen; `loom set`,
`loom pause`, `loom checkpoint` and `loom stop` work. What to load is the script's decision.
"""

from __future__ import annotations

import argparse
import os
import re

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def newest(directory: str) -> tuple[int, str]:
    """Step and path of the newest state."""
    found = [(0, "")]
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        match = re.fullmatch(r"step-(\d+)", name)
        if match:
            found.append((int(match[1]), os.path.join(directory, name)))
    return max(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="accelerate-out")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50)
    given = parser.parse_args()

    set_seed(1)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    x = torch.randn(2048, 4)
    loader = DataLoader(TensorDataset(x, 3 * x), batch_size=16, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step, path = newest(given.output_dir)
    if path:
        accelerator.load_state(path)
        accelerator.print(f"resumed after step {step}", flush=True)
    while step < given.steps:
        for inputs, wanted in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), wanted)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            accelerator.log({"loss": loss.item()}, step=step)
            if step % given.save_every == 0:
                accelerator.save_state(os.path.join(given.output_dir, f"step-{step}"))
            if step == given.steps:
                break
    accelerator.print(f"ended after step {step}", flush=True)


if __name__ == "__main__":
    main()
